//! Finding the server, reaching it, and making sure that it is a store, all within one deadline.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_core::time::backoff;
use rdzv_store_proto::wire::request;
use socket2::{SockRef, TcpKeepalive};

use super::link::Link;
use crate::StoreError;
use crate::deadline::Deadline;

/// First pause between two tries. PyTorch begins with half a second; a server on the same
/// host is there within milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// Longest pause between two tries, about.
const LONGEST_PAUSE: Duration = Duration::from_secs(3);

/// Most time for one address, so that one that swallows everything does not keep us from the next.
const MOST_PER_ADDRESS: Duration = Duration::from_secs(10);

/// Even with no time left, each try gets this much.
const LEAST: Duration = Duration::from_millis(1);

/// Connects to the store at `endpoint`, trying until the deadline.
pub(super) fn connect(endpoint: &Endpoint, deadline: &Deadline) -> Result<Link, StoreError> {
    let mut attempts = 0;
    loop {
        let failed = match try_once(endpoint, deadline) {
            Ok(link) => return Ok(link),
            Err(failed) => failed,
        };
        attempts += 1;
        if let Reason::OtherProtocol(found) = failed.reason {
            return Err(StoreError::NotAStore {
                peer: failed.peer,
                found,
            });
        }
        if deadline.has_passed() {
            return Err(failed.into_error(attempts, deadline));
        }
        let pause = backoff(attempts - 1, fastrand::f64(), FIRST_PAUSE, LONGEST_PAUSE);
        // The last try comes right at the deadline.
        let pause = deadline.remaining().map_or(pause, |left| left.min(pause));
        tracing::debug!(peer = %failed.peer, reason = %failed.reason.text(), ?pause, "no store yet");
        thread::sleep(pause);
    }
}

/// Why one try failed.
struct Failed {
    /// As asked for, with the numeric address if there was one.
    peer: String,
    reason: Reason,
}

enum Reason {
    /// No connection.
    Unreachable(io::Error),
    /// A connection on which no answer came.
    Silent(String),
    /// Somebody answered something else.
    OtherProtocol(String),
}

impl Reason {
    fn text(&self) -> String {
        match self {
            Self::Unreachable(error) => error.to_string(),
            Self::Silent(found) | Self::OtherProtocol(found) => found.clone(),
        }
    }
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
            Reason::Silent(found) | Reason::OtherProtocol(found) => StoreError::NotAStore {
                peer: self.peer,
                found,
            },
        }
    }
}

/// Tries every address of the host once, IPv6 first.
fn try_once(endpoint: &Endpoint, deadline: &Deadline) -> Result<Link, Failed> {
    let left = || deadline.remaining().map(|left| left.max(LEAST));
    let mut failed = Failed {
        peer: endpoint.to_string(),
        reason: Reason::Unreachable(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        )),
    };
    let addresses = match resolve(endpoint, left()) {
        Ok(addresses) => addresses,
        Err(error) => {
            failed.reason = Reason::Unreachable(error);
            return Err(failed);
        }
    };
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
        match TcpStream::connect_timeout(&address, share) {
            Err(error) => failed.reason = Reason::Unreachable(error),
            Ok(stream) => match handshake(&stream, left()) {
                Ok(()) => return Ok(Link::new(stream, address)),
                Err(reason) => {
                    failed.reason = reason;
                    return Err(failed);
                }
            },
        }
    }
    Err(failed)
}

/// The host's addresses, IPv6 first. Only names are resolved, for at most `within`.
fn resolve(endpoint: &Endpoint, within: Option<Duration>) -> io::Result<Vec<SocketAddr>> {
    let Endpoint { host, port } = endpoint.clone();
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    // Name resolution cannot be interrupted, so it gets a thread that may stay behind.
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("rdzv-resolve".to_owned())
        .spawn(move || {
            let found = (host.as_str(), port)
                .to_socket_addrs()
                .map(Iterator::collect::<Vec<_>>);
            let _nobody_waits_any_more = sender.send(found);
        })?;
    let found = receiver.recv_timeout(within.unwrap_or(Duration::MAX));
    let mut addresses = found.unwrap_or_else(|_| {
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "the look-up of its name took too long",
        ))
    })?;
    addresses.sort_by_key(SocketAddr::is_ipv4);
    addresses.dedup();
    Ok(addresses)
}

/// Exchanges the preamble.
fn handshake(stream: &TcpStream, within: Option<Duration>) -> Result<(), Reason> {
    let nonce = std::process::id();
    let mut preamble = Vec::new();
    request::preamble(&mut preamble, nonce);
    match exchange(stream, &preamble, within) {
        Ok(answer) if answer[..] == nonce.to_le_bytes() => Ok(()),
        Ok(answer) if answer.is_empty() => Err(Reason::Silent(
            "it closed the connection when it was asked to show that it is one; PyTorch before 2.5 \
             does that, and so do other services"
                .to_owned(),
        )),
        Ok(answer) => Err(Reason::OtherProtocol(format!(
            "it answered {:?}",
            String::from_utf8_lossy(&answer).trim_end()
        ))),
        Err(error) => Err(Reason::Silent(match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "it accepted the connection and said nothing".to_owned()
            }
            _ => format!("the connection broke before it answered: {error}"),
        })),
    }
}

/// Sends the preamble and reads the four bytes of its answer, or as much of another one as comes
/// with them.
fn exchange(stream: &TcpStream, preamble: &[u8], within: Option<Duration>) -> io::Result<Vec<u8>> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    // A host that vanishes without a word is noticed in two minutes instead of never.
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(60))
        .with_interval(Duration::from_secs(10))
        .with_retries(6);
    socket.set_tcp_keepalive(&keepalive)?;
    let mut stream = stream;
    stream.write_all(preamble)?;
    let end = within.and_then(|within| Instant::now().checked_add(within));
    let mut answer = [0; 64];
    let mut length = 0;
    while length < 4 {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()).max(LEAST));
        stream.set_read_timeout(left)?;
        match stream.read(&mut answer[length..]) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(answer[..length].to_vec())
}
