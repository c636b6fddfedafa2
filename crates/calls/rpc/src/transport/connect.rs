//! Connects to a worker, and chooses the transport.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Instant;

use rdzv_core::escape::escape;
use rdzv_shm::Leases;
use rustix::event::PollFlags;

use super::error::TransportError;
use super::options::TransportOptions;
use super::peer_address::{PeerAddress, host_identity};
use super::socket::{self, Socket, send};
use super::tls::{self, TlsSession};
use super::unix::{self, Agreed};
use super::wait::Attempt;
use super::{Carrier, TransportKind, shared, tcp};

/// First byte from a TLS acceptor, once it has accepted the certificate.
pub(super) const WELCOME: u8 = b'W';

/// Connects to a worker, and waits until the connection is ready.
///
/// The carrier states which transport was selected, and why. Workers of one host use a Unix socket
/// and exchange rings over it, unless the options disable it. For other hosts, and if the socket is
/// disabled or cannot be reached, this uses TCP.
///
/// # Errors
///
/// [`TransportError::Unreachable`] and [`TransportError::Late`], after which a retry may help;
/// [`TransportError::Refused`] and [`TransportError::RefusedBy`], after which a retry does not
/// help; [`TransportError::System`] if an operation on this side failed.
pub fn connect(
    peer_address: &PeerAddress,
    options: &TransportOptions,
    deadline: Instant,
) -> Result<Carrier, TransportError> {
    let peer = peer_address.to_string();
    let attempt = Attempt {
        peer: &peer,
        since: Instant::now(),
        deadline,
    };
    let why_not = match near(peer_address, options) {
        Ok(name) => match unix::dial(name, options, attempt) {
            Ok((socket, agreed)) => return near_carrier(socket, agreed, peer),
            Err(TransportError::Unreachable { source, .. }) => {
                format!("same host, but cannot connect to its Unix socket ({source})")
            }
            Err(error) => return Err(error),
        },
        Err(why_not) => why_not,
    };
    far(peer_address, options, attempt, why_not)
}

/// Returns the name of the worker's Unix socket, or the reason not to use it.
fn near<'a>(peer_address: &'a PeerAddress, options: &TransportOptions) -> Result<&'a str, String> {
    if !peer_address.is_on(&host_identity()) {
        return Err("another host".to_owned());
    }
    match &peer_address.unix {
        _ if !options.unix => Err("same host, but Unix sockets are turned off".to_owned()),
        None => Err("same host, but the peer has no Unix socket".to_owned()),
        Some(name) => Ok(name),
    }
}

fn far(
    peer_address: &PeerAddress,
    options: &TransportOptions,
    attempt: Attempt<'_>,
    why_not: String,
) -> Result<Carrier, TransportError> {
    if !options.tcp {
        let reason = format!("{why_not}, and TCP is turned off");
        return Err(refused(attempt, reason));
    }
    match (&options.tls, peer_address.tls) {
        (None, true) => Err(refused(
            attempt,
            "it requires TLS, but this worker has no certificates: give certificates to all \
             workers or to none",
        )),
        (Some(_), false) => Err(refused(
            attempt,
            "it does not use TLS, but this worker requires TLS: give certificates to all workers \
             or to none",
        )),
        (None, false) => {
            let socket = tcp::dial(peer_address.address, options.heartbeat_limit, attempt)?;
            tcp_carrier(socket, attempt.peer.to_owned(), why_not)
        }
        (Some(identity), true) => {
            let socket = tcp::dial(peer_address.address, options.heartbeat_limit, attempt)?;
            let session = TlsSession::connector(identity, Socket(socket));
            let session = session.map_err(|reason| refused(attempt, reason))?;
            secure(session, attempt, why_not)
        }
    }
}

/// Performs the handshake as the connector; reads the acceptor's first byte.
fn secure(
    mut session: TlsSession,
    attempt: Attempt<'_>,
    reason: String,
) -> Result<Carrier, TransportError> {
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => refused(attempt, error.to_string()),
        _ => attempt.lost(error),
    };
    while !session.handshake().map_err(failed)? {
        let direction = if session.wants_room() {
            PollFlags::OUT
        } else {
            PollFlags::IN
        };
        attempt.wait(&session.stream().0, direction, "continue the TLS handshake")?;
    }
    let mut answer = [0];
    loop {
        match session.read(&mut answer) {
            Ok(1) if answer == [WELCOME] => break,
            Ok(_) => {
                return Err(attempt.lost(io::ErrorKind::UnexpectedEof.into()));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                attempt.wait(
                    &session.stream().0,
                    PollFlags::IN,
                    "continue the TLS handshake",
                )?;
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(TransportError::RefusedBy {
                    peer: attempt.peer.to_owned(),
                    reason: error.to_string(),
                });
            }
            Err(error) => return Err(attempt.lost(error)),
        }
    }
    tls_carrier(session, attempt.peer.to_owned(), reason)
}

fn refused(attempt: Attempt<'_>, reason: impl Into<String>) -> TransportError {
    TransportError::Refused {
        peer: attempt.peer.to_owned(),
        reason: reason.into(),
    }
}

pub(super) fn near_carrier(
    socket: OwnedFd,
    agreed: Agreed,
    peer: String,
) -> Result<Carrier, TransportError> {
    let process = rdzv_shm::pass::peer(&socket).ok();
    let carrier = match agreed {
        Agreed::Shared(link) => {
            let arenas = Leases::new(socket);
            let halves = shared::halves(link, &arenas);
            let halves = halves.map_err(TransportError::system("watch rings"))?;
            let reason = "same host".to_owned();
            Carrier {
                arenas: Some(arenas),
                ..Carrier::new(halves, TransportKind::Shared, reason, peer)
            }
        }
        Agreed::Socket(why) => {
            let reason = format!("same host, {why}");
            Carrier::new(split(socket)?, TransportKind::Unix, reason, peer)
        }
    };
    Ok(Carrier { process, ..carrier })
}

pub(super) fn tcp_carrier(
    socket: OwnedFd,
    peer: String,
    reason: String,
) -> Result<Carrier, TransportError> {
    let halves = split(socket)?;
    Ok(Carrier::new(halves, TransportKind::Tcp, reason, peer))
}

pub(super) fn tls_carrier(
    session: TlsSession,
    peer: String,
    reason: String,
) -> Result<Carrier, TransportError> {
    let certified = session.certified();
    let certified = Some(certified.iter().map(|name| escape(name)).collect());
    let halves = tls::halves(session).map_err(TransportError::system("share a socket"))?;
    Ok(Carrier {
        certified,
        ..Carrier::new(halves, TransportKind::TlsTcp, reason, peer)
    })
}

fn split(socket: OwnedFd) -> Result<(Socket, Socket), TransportError> {
    socket::halves(socket).map_err(TransportError::system("share a socket"))
}

/// Sends the reason for a refusal to a peer on a plain socket, if possible.
pub(super) fn turn_away(socket: &OwnedFd, reason: &str) {
    let frame = rdzv_rpc_proto::frame::refusal::go_away(reason);
    // Either the peer has closed the socket, or the new socket has room. In both cases no wait is
    // necessary.
    let _ = send(socket.as_fd(), &[IoSlice::new(&frame)]);
}
