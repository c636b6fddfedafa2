//! Admission of clients to a server whose job has a token or certificates.
//!
//! ```text
//!   first byte      0x30   handshake of the token ─────────► open
//!   of a peer       0x16   TLS, then that handshake ───────► open
//!                   other  a client of PyTorch's ──────────► open, if its address is admitted;
//!                                                            not the keys and requests of agents
//! ```
//!
//! A server with certificates refuses the handshake of the token without TLS. If it has no token,
//! it opens the connection after the TLS handshake. A server without credentials does not check the
//! first byte.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rdzv_trust::handshake::{Acceptor, OPCODE, Progress, TLS_RECORD};
use rdzv_trust::token::nonce;
use rdzv_trust::{Credentials, Session};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

/// Clients that need not prove membership, because PyTorch's clients cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TorchClients {
    /// No client.
    Deny,
    /// Clients on loopback, or at addresses from which membership was proven.
    /// Such an address belongs to a process of the job. A server with an
    /// [extension](super::ServerOptions::extension) admits none of these clients, unless the server
    /// is a [workers' store](Admission::agent_prefix).
    #[default]
    Job,
    /// All clients. Required if agents of torchrun participate.
    /// Anyone who can reach the port is then a client.
    Any,
}

/// Rule by which a server admits clients. The default admits every client.
#[derive(Debug, Clone, Default)]
pub struct Admission {
    /// Credentials that a client must prove. If empty, every client is admitted.
    pub credentials: Credentials,
    /// Clients that need no proof.
    pub torch_clients: TorchClients,
    /// Prefix of the keys for agents, in a store that workers also use.
    /// The prefix is the one on the wire. Clients without proof can neither read nor change those
    /// keys, and cannot send extension requests. [`TorchClients::Any`] lifts this restriction, and
    /// so do empty credentials.
    pub agent_prefix: Option<Vec<u8>>,
}

/// Stage of a connection before the store reads from it.
#[derive(Debug)]
pub(super) enum Entry {
    /// Nothing has been read from the connection.
    First,
    /// The TLS handshake is in progress.
    Encrypting,
    /// The token handshake is in progress.
    Proving(Box<Acceptor>),
    /// The bytes of the connection are for the store.
    Open,
}

pub(super) type Tls = Session<TcpStream>;

/// Next step of a connection that is not open yet.
pub(super) enum Step {
    /// The connection waits for bytes, or for space to write if `room` is `true`.
    Wait { room: bool },
    /// The peer has closed the connection, or the connection failed.
    Gone,
    /// The connection is open.
    /// `proven` is `true` if the peer has proven that it belongs to the job.
    Open { proven: bool, rest: Vec<u8> },
    /// The server refuses the peer, for this reason.
    Refuse(String),
}

/// Admission rule, and the addresses from which membership was proven.
#[derive(Debug)]
pub(super) struct Gate {
    admission: Admission,
    /// `true` if agents use this store and workers do not.
    is_for_agents: bool,
    /// Addresses of peers that have proven that they belong to the job.
    known: BTreeSet<IpAddr>,
}

impl Gate {
    pub(super) fn new(admission: Admission, has_extension: bool) -> Self {
        Self {
            is_for_agents: has_extension && admission.agent_prefix.is_none(),
            admission,
            known: BTreeSet::new(),
        }
    }

    /// Returns the first stage of a connection.
    pub(super) fn entry(&self) -> Entry {
        if self.admission.credentials.is_empty() {
            Entry::Open
        } else {
            Entry::First
        }
    }

    /// Continues a connection that is not open.
    pub(super) fn advance(
        &mut self,
        descriptor: &OwnedFd,
        peer: Option<SocketAddr>,
        entry: &mut Entry,
        tls: &mut Option<Box<Tls>>,
        scratch: &mut [u8],
    ) -> Step {
        let peer = peer.map(|peer| peer.ip().to_canonical());
        loop {
            let next = match entry {
                Entry::First => self.first(descriptor, peer, tls),
                Entry::Encrypting => self.encrypt(tls.as_deref_mut()),
                Entry::Proving(acceptor) => {
                    prove(acceptor, descriptor, tls.as_deref_mut(), scratch)
                }
                Entry::Open => Err(open(false)),
            };
            match next {
                Ok(next) => *entry = next,
                Err(step) => {
                    if let Step::Open { proven, .. } = step {
                        *entry = Entry::Open;
                        if proven {
                            self.known.extend(peer);
                        }
                    }
                    return step;
                }
            }
        }
    }

    /// Reads the first byte without consuming it.
    fn first(
        &self,
        descriptor: &OwnedFd,
        peer: Option<IpAddr>,
        tls: &mut Option<Box<Tls>>,
    ) -> Result<Entry, Step> {
        let credentials = &self.admission.credentials;
        let mut byte = [0; 1];
        match recv(descriptor, &mut byte, RecvFlags::PEEK) {
            Ok((0, _)) => return Err(Step::Gone),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Err(Step::Wait { room: false }),
            Err(_) => return Err(Step::Gone),
        }
        match (byte[0], &credentials.identity, &credentials.token) {
            (TLS_RECORD, Some(identity), _) => {
                let stream = descriptor.try_clone().map(TcpStream::from);
                let stream = stream.map_err(|error| Step::Refuse(error.to_string()))?;
                let session = Session::acceptor(identity, stream).map_err(Step::Refuse)?;
                *tls = Some(Box::new(session));
                Ok(Entry::Encrypting)
            }
            (TLS_RECORD, None, _) => Err(refuse(
                "it uses TLS, but this store has no certificate; start the store with --tls-cert, \
                 or the client without it",
            )),
            (OPCODE, Some(_), _) => Err(refuse(
                "this store requires TLS; start the client with --tls-cert, --tls-key and --tls-ca",
            )),
            (OPCODE, None, Some(token)) => Ok(proving(token)),
            _ => self.admit_unproven(peer),
        }
    }

    fn encrypt(&self, tls: Option<&mut Tls>) -> Result<Entry, Step> {
        let Some(session) = tls else {
            return Err(Step::Gone);
        };
        match session.handshake() {
            Ok(true) => match &self.admission.credentials.token {
                Some(token) => Ok(proving(token)),
                // The authority of the job has signed the peer's certificate.
                None => Err(open(true)),
            },
            Ok(false) => Err(Step::Wait {
                room: session.wants_room(),
            }),
            Err(why) => Err(Step::Refuse(format!("the TLS handshake failed: {why}"))),
        }
    }

    /// Admits or refuses a client that begins like PyTorch's.
    fn admit_unproven(&self, peer: Option<IpAddr>) -> Result<Entry, Step> {
        let is_of_job = peer.is_some_and(|peer| peer.is_loopback() || self.known.contains(&peer));
        let allowed = match self.admission.torch_clients {
            TorchClients::Deny => false,
            TorchClients::Job => !self.is_for_agents && is_of_job,
            TorchClients::Any => true,
        };
        if allowed {
            Err(open(false))
        } else {
            Err(refuse(match &self.admission.credentials.identity {
                None => {
                    "this store requires a job token; start the client with --token-file or \
                     RDZV_JOB_TOKEN_FILE"
                }
                Some(_) => {
                    "this store requires TLS; start the client with --tls-cert, --tls-key and \
                     --tls-ca"
                }
            }))
        }
    }

    /// `true` if clients without proof may not use the keys and requests of agents.
    pub(super) fn restricts(&self) -> bool {
        self.admission.agent_prefix.is_some() && self.admission.torch_clients != TorchClients::Any
    }
}

fn open(proven: bool) -> Step {
    let rest = Vec::new();
    Step::Open { proven, rest }
}

fn refuse(why: &str) -> Step {
    Step::Refuse(why.to_owned())
}

fn proving(token: &rdzv_trust::Token) -> Entry {
    Entry::Proving(Box::new(Acceptor::new(token.clone(), nonce())))
}

/// Reads the bytes of the handshake that have arrived.
fn prove(
    acceptor: &mut Acceptor,
    descriptor: &OwnedFd,
    mut tls: Option<&mut Tls>,
    scratch: &mut [u8],
) -> Result<Entry, Step> {
    loop {
        let read = match &mut tls {
            Some(session) => session.read(scratch),
            None => recv(descriptor, &mut *scratch, RecvFlags::empty())
                .map(|(count, _)| count)
                .map_err(Into::into),
        };
        let mut bytes = match read {
            Ok(0) => return Err(Step::Gone),
            Ok(count) => &scratch[..count],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(Step::Wait { room: false });
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => return Err(Step::Gone),
        };
        while !bytes.is_empty() {
            match acceptor.take(bytes) {
                Ok(Progress::More) => break,
                Ok(Progress::Answer(used, answer)) => {
                    bytes = &bytes[used..];
                    // The answer is short, and nothing has been sent before it.
                    let sent = match &mut tls {
                        Some(session) => session.write(&[IoSlice::new(&answer)]).ok(),
                        None => send(descriptor, &answer, SendFlags::NOSIGNAL).ok(),
                    };
                    if sent != Some(answer.len()) {
                        return Err(Step::Gone);
                    }
                }
                Ok(Progress::Proven(used)) => {
                    return Err(Step::Open {
                        proven: true,
                        rest: bytes[used..].to_vec(),
                    });
                }
                Err(why) => return Err(Step::Refuse(format!("it {why}"))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rdzv_store_proto::wire::request::OPCODE_RANGES;
    use rdzv_trust::Token;

    use super::*;

    fn gate(torch_clients: TorchClients, has_extension: bool) -> Gate {
        let admission = Admission {
            credentials: Credentials {
                token: Some(Token::new(&[1; 16]).unwrap()),
                identity: None,
            },
            torch_clients,
            agent_prefix: None,
        };
        Gate::new(admission, has_extension)
    }

    fn admits(gate: &Gate, peer: &str) -> bool {
        let step = gate.admit_unproven(Some(peer.parse().unwrap()));
        matches!(step, Err(Step::Open { proven: false, .. }))
    }

    #[test]
    fn workers_elsewhere_are_admitted_once_a_process_of_the_job_was_there() {
        let mut workers = gate(TorchClients::Job, false);
        for peer in ["127.0.0.1", "127.3.0.1", "::1"] {
            assert!(admits(&workers, peer), "{peer}");
        }
        for peer in ["10.0.0.7", "10.0.0.8", "2001:db8::7"] {
            assert!(!admits(&workers, peer), "{peer}");
        }
        workers.known.insert("10.0.0.7".parse().unwrap());
        assert!(admits(&workers, "10.0.0.7"));
        assert!(!admits(&workers, "10.0.0.8"));
        // With `job`, a store for agents admits no client without proof.
        assert!(!admits(&gate(TorchClients::Job, true), "127.0.0.1"));
        assert!(!admits(&gate(TorchClients::Deny, false), "127.0.0.1"));
        assert!(admits(&gate(TorchClients::Any, true), "10.0.0.7"));
    }

    #[test]
    fn the_opcode_of_the_handshake_is_reserved() {
        let (_, range) = OPCODE_RANGES
            .into_iter()
            .find(|(protocol, _)| *protocol == "token")
            .unwrap();
        assert_eq!(*range.start(), OPCODE);
    }
}
