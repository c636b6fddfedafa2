//! Connects to the server and checks that it is a store.
//!
//! All steps share one deadline.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::reminder::{self, Reminder};
use rdzv_core::time::backoff;
use rdzv_store_proto::wire::other_protocol::kind_of_server;
use rdzv_store_proto::wire::request::{self, NATIVE_ANSWER, NATIVE_PROBE};
use rdzv_trust::channel::OpenError;
use rdzv_trust::handshake::is_refusal;
use rdzv_trust::{Channel, Credentials};
use thiserror::Error;

use super::link::Link;
use super::server::KeepAlive;
use crate::StoreError;
use crate::deadline::Deadline;
use crate::interrupt::{self, beside};
use crate::port_user::connect_error;
use crate::resolve::resolve;

/// First pause between two attempts.
/// PyTorch begins with half a second; a server on the same host is ready within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// Approximate longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Longest time for connecting to one address.
/// Without it, an address that drops everything could prevent attempts at the next one.
const MOST_PER_ADDRESS: Duration = Duration::from_secs(10);

/// Maximum number of bytes of an answer that are read to identify the peer.
const SHOWN: usize = 64;

const SAID_NOTHING: &str = "it accepted the connection but sent nothing";

/// Minimum duration of an attempt, even if no time is left.
const LEAST: Duration = Duration::from_millis(1);

/// Time without an answer after which the client sends an HTTP request.
/// An HTTP server waits for a complete request, and would otherwise stay silent indefinitely. A
/// store of a healthy job answers within milliseconds.
const ASK_IN_HTTP: Duration = Duration::from_secs(1);

/// Time that the peer has to answer the HTTP request.
const HTTP_ANSWER: Duration = Duration::from_secs(1);

/// Connects to the store at `endpoint` before the deadline.
///
/// Makes a single attempt if `wait_for_server` is `false`. The second returned value is `true` if
/// the server is an rdzv server that supports [`request::get_when_there`]. It is `false` for
/// PyTorch's server and for an earlier rdzv server.
pub(super) fn connect(
    endpoint: &Endpoint,
    deadline: &Deadline,
    wait_for_server: bool,
    max_reply_bytes: usize,
    credentials: &Credentials,
) -> Result<(Link, bool), StoreError> {
    let mut attempts = 0;
    let mut before: Option<Failed> = None;
    let mut silence = Silence {
        deadline,
        asked: false,
        reminder: Reminder::default(),
    };
    loop {
        let tried = try_once(endpoint, &mut silence, max_reply_bytes, credentials);
        let failed = match tried {
            Ok(found) => return Ok(found),
            Err(failed) => failed,
        };
        attempts += 1;
        interrupt::check("connect", &[&failed.peer], deadline.elapsed())?;
        if matches!(failed.reason, Reason::OtherProtocol(_) | Reason::Refused(_)) {
            return Err(failed.into_error(attempts, deadline));
        }
        if !wait_for_server || deadline.has_passed() {
            // The last attempt has too little time to receive an answer.
            let last = match &failed.reason {
                Reason::Silent(found) if found == SAID_NOTHING => before.unwrap_or(failed),
                _ => failed,
            };
            return Err(last.into_error(attempts, deadline));
        }
        silence.report(&failed.peer, &failed.reason.to_string());
        let pause = backoff(attempts - 1, fastrand::f64(), FIRST_PAUSE, LONGEST_PAUSE);
        // The last attempt comes right at the deadline.
        let pause = deadline.remaining().map_or(pause, |left| left.min(pause));
        tracing::debug!(
            peer = %failed.peer, reason = %failed.reason, ?pause,
            "no store has answered yet"
        );
        interrupt::sleep(pause, "connect", &[&failed.peer], deadline)?;
        before = Some(failed);
    }
}

/// Handling of a peer that is not there or does not answer.
struct Silence<'a> {
    deadline: &'a Deadline,
    asked: bool,
    reminder: Reminder,
}

impl Silence<'_> {
    /// Returns how long to wait for an answer before the next [`Silence::act`].
    fn next(&self, connected: Instant) -> Duration {
        if self.asked {
            self.reminder.next().saturating_sub(self.deadline.elapsed())
        } else {
            ASK_IN_HTTP.saturating_sub(connected.elapsed())
        }
    }

    /// Handles a peer that has not answered yet.
    /// Returns an error that names the kind of peer, if an HTTP request reveals it.
    fn act(&mut self, connected: Instant, address: SocketAddr) -> Result<(), Reason> {
        if !self.asked && connected.elapsed() >= ASK_IN_HTTP {
            self.asked = true;
            let answer = beside(move || ask_in_http(address)).unwrap_or_default();
            if let Some(kind) = kind_of_server(&answer) {
                return Err(Reason::OtherProtocol(format!(
                    "it is {kind}: it answered {}",
                    shown(&answer)
                )));
            }
        }
        self.report(&address.to_string(), SAID_NOTHING);
        Ok(())
    }

    fn report(&mut self, peer: &str, found: &str) {
        if !self.reminder.is_due(self.deadline.elapsed()) {
            return;
        }
        let remaining = self.deadline.remaining().map(|left| left.as_secs());
        let left = remaining.map_or_else(
            || "no time limit".to_owned(),
            |left| format!("{left} s left"),
        );
        tracing::warn!(
            target: reminder::TARGET,
            left = remaining,
            "no store has answered at {peer} ({found}); {left}; check that this is the address and \
             port of the job's store"
        );
    }
}

/// Returns the peer's answer to an HTTP request on a separate connection.
fn ask_in_http(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, HTTP_ANSWER)?;
    stream.set_write_timeout(Some(HTTP_ANSWER))?;
    stream.write_all(b"HEAD / HTTP/1.0\r\n\r\n")?;
    let deadline = Instant::now() + HTTP_ANSWER;
    let mut answer = [0; SHOWN];
    let mut length = 0;
    while length < SHOWN {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut answer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    Ok(answer[..length].to_vec())
}

/// Failure of one attempt, and its reason.
struct Failed {
    /// Requested endpoint, and the numeric address if it was resolved.
    peer: String,
    reason: Reason,
}

#[derive(Debug, Error)]
#[error("{0}")]
enum Reason {
    /// No connection could be established.
    Unreachable(io::Error),
    /// The connection was established, but the peer did not answer.
    Silent(String),
    /// The peer answered in another protocol.
    OtherProtocol(String),
    /// One side rejected the other side's proof of membership.
    Refused(String),
}

impl Failed {
    fn into_error(self, attempts: u32, deadline: &Deadline) -> StoreError {
        match self.reason {
            Reason::Unreachable(error) => StoreError::Connect {
                peer: self.peer,
                attempts,
                reason: error.to_string(),
                elapsed: deadline.elapsed(),
            },
            Reason::Silent(found) => StoreError::Silent {
                peer: self.peer,
                found,
                elapsed: deadline.elapsed(),
            },
            Reason::OtherProtocol(found) => StoreError::NotAStore {
                peer: self.peer,
                found,
            },
            Reason::Refused(why) => StoreError::Refused {
                peer: self.peer,
                why,
            },
        }
    }
}

/// Tries the addresses of the host in order, IPv6 first, until one connects.
fn try_once(
    endpoint: &Endpoint,
    silence: &mut Silence<'_>,
    max_reply_bytes: usize,
    credentials: &Credentials,
) -> Result<(Link, bool), Failed> {
    let deadline = silence.deadline;
    let left = || deadline.remaining().map(|left| left.max(LEAST));
    let mut failed = Failed {
        peer: endpoint.to_string(),
        reason: Reason::Unreachable(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        )),
    };
    let addresses = addresses(endpoint, left()).map_err(|error| Failed {
        peer: endpoint.to_string(),
        reason: Reason::Unreachable(error),
    })?;
    let count = addresses.len();
    for (index, address) in addresses.into_iter().enumerate() {
        let share = left().map_or(MOST_PER_ADDRESS, |left| {
            (left / (count - index) as u32).clamp(LEAST, MOST_PER_ADDRESS)
        });
        let name = endpoint.to_string();
        failed.peer = if name == address.to_string() {
            name
        } else {
            format!("{name} ({address})")
        };
        match beside(move || TcpStream::connect_timeout(&address, share)) {
            // The connection was established. Otherwise, the error would be a refusal.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {
                failed.reason = broke(&error);
                return Err(failed);
            }
            Err(error) => failed.reason = Reason::Unreachable(connect_error(error)),
            Ok(stream) => {
                let met = handshake(stream, address, left(), silence, credentials);
                let linked = met.and_then(|(channel, is_native)| {
                    let link = Link::new(channel, address, max_reply_bytes);
                    Ok((link.map_err(Reason::Unreachable)?, is_native))
                });
                return linked.map_err(|reason| Failed { reason, ..failed });
            }
        }
    }
    Err(failed)
}

/// Returns the host's addresses, IPv6 first.
fn addresses(endpoint: &Endpoint, within: Option<Duration>) -> io::Result<Vec<SocketAddr>> {
    let mut addresses = resolve(&endpoint.host, endpoint.port, within)?;
    addresses.sort_by_key(SocketAddr::is_ipv4);
    addresses.dedup();
    Ok(addresses)
}

fn broke(error: &io::Error) -> Reason {
    Reason::Silent(format!("the connection failed before it answered: {error}"))
}

/// Proves membership if required, and exchanges the preamble.
/// The second returned value is the same as for [`connect`].
fn handshake(
    stream: TcpStream,
    address: SocketAddr,
    within: Option<Duration>,
    silence: &mut Silence<'_>,
    credentials: &Credentials,
) -> Result<(Channel, bool), Reason> {
    prepare(&stream).map_err(|error| broke(&error))?;
    let connected = Instant::now();
    let for_proof = within.unwrap_or(Duration::MAX);
    let proof = credentials.clone();
    let (mut channel, mut preamble) = beside(move || Ok(Channel::open(stream, &proof, for_proof)))
        .map_err(Reason::Unreachable)?
        .map_err(|error| match error {
            OpenError::Refused(why) => Reason::Refused(why),
            other => Reason::Silent(other.to_string()),
        })?;
    request::preamble(&mut preamble, NATIVE_PROBE);
    channel
        .write_all(&preamble)
        .map_err(|error| broke(&error))?;
    let end = within.and_then(|within| connected.checked_add(within));
    let echo = NATIVE_PROBE.to_le_bytes();
    let native = NATIVE_ANSWER.to_le_bytes();
    let mut answer = [0; SHOWN];
    let mut length = 0;
    // Read until the answer is complete or wrong.
    while length < echo.len()
        && [echo, native]
            .iter()
            .any(|right| right.starts_with(&answer[..length]))
    {
        let left = end.map_or(Duration::MAX, |end| {
            end.saturating_duration_since(Instant::now())
        });
        let wait = left.min(silence.next(connected));
        let wait = interrupt::slice(Some(wait)).unwrap_or(wait).max(LEAST);
        let read = channel
            .stream()
            .set_read_timeout((wait < Duration::MAX).then_some(wait))
            .and_then(|()| channel.read(&mut answer[length..]));
        match read {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) => match error.kind() {
                io::ErrorKind::Interrupted => {}
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                    if interrupt::is_wanted() {
                        return Err(Reason::Unreachable(io::ErrorKind::Interrupted.into()));
                    }
                    if end.is_some_and(|end| end <= Instant::now()) {
                        return Err(Reason::Silent(match length {
                            0 => SAID_NOTHING.to_owned(),
                            _ => format!("it sent only {length} of 4 bytes"),
                        }));
                    }
                    silence.act(connected, address)?;
                }
                // The peer checks this side's certificate after its own part of the handshake.
                io::ErrorKind::InvalidData => {
                    return Err(Reason::Refused(format!("TLS failed: {error}")));
                }
                _ => return Err(broke(&error)),
            },
        }
    }
    let answer = &answer[..length];
    if *answer == native || *answer == echo {
        let is_native = *answer == native;
        return Ok((channel, is_native));
    }
    if is_refusal(answer) {
        let left = end.map_or(Duration::MAX, |end| {
            end.saturating_duration_since(Instant::now())
        });
        return Err(Reason::Refused(channel.rest_of_refusal(answer, left)));
    }
    if answer.is_empty() {
        return Err(Reason::Silent(
            "it closed the connection instead of identifying itself as a store, as PyTorch before \
             2.5 and other services do"
                .to_owned(),
        ));
    }
    let is = kind_of_server(answer).map_or_else(String::new, |kind| format!("it is {kind}: "));
    Err(Reason::OtherProtocol(format!(
        "{is}it answered {}",
        shown(answer)
    )))
}

/// Returns the first bytes of an answer in the form that errors show.
fn shown(answer: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(answer).trim_end())
}

fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // The loss of a silent host is detected within two minutes instead of never.
    Ok(KeepAlive::default().set(stream)?)
}
