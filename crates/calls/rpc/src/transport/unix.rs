//! Unix sockets between workers of one host, and the first greeting.
//!
//! The sockets have random abstract names. A file in a private directory would also keep other
//! users out, but would remain whenever a worker is killed. Every process in the same network
//! namespace can see an abstract name. Both sides therefore ask the kernel for the user of the
//! peer, and refuse users that the options do not allow. The connecting side checks the listener
//! too, so a process gains nothing by claiming a name first.
//!
//! ```text
//!  connector                                   acceptor
//!      ── 16 bytes: the offer of rings, with
//!         their descriptors, or "no rings" ──►
//!      ◄───── 1 byte: shared, or the socket ──   or a GoAway frame
//! ```

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener};

use rdzv_rpc_proto::frame::header::HEADER_LENGTH;
use rdzv_rpc_proto::frame::refusal;
use rdzv_shm::pair::{self, MESSAGE, Offer, SharedLink};
use rdzv_shm::pass::{self, Peer};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::error::TransportError;
use super::options::TransportOptions;
use super::socket::{receive, send};
use super::wait::Attempt;

const NO_RINGS: [u8; MESSAGE] = *b"rdzv: no rings.\n";
const SHARED: u8 = b'S';
const SOCKET: u8 = b'U';

pub(super) fn listen() -> Result<(UnixListener, String), TransportError> {
    let name = format!("rdzv-rpc-{}", uuid::Uuid::new_v4().simple());
    let listener = UnixAddress::from_abstract_name(&name)
        .and_then(|address| UnixListener::bind_addr(&address))
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    let what = "listen on an abstract Unix socket";
    Ok((listener.map_err(TransportError::system(what))?, name))
}

/// Result of the greeting before the first frame.
#[derive(Debug)]
pub(super) enum Agreed {
    /// Both sides have rings; the socket stays open to report the end of the peer.
    Shared(SharedLink),
    /// Both sides use the socket itself, for this reason.
    Socket(String),
}

pub(super) fn describe(peer: Peer) -> String {
    format!(
        "process {} of user {} on this host",
        peer.process, peer.user
    )
}

/// Refuses a peer whose process belongs to a user that is not allowed.
pub(super) fn check_user(peer: Peer, options: &TransportOptions) -> Result<(), String> {
    let ours = rustix::process::geteuid().as_raw();
    let allowed = match &options.users {
        Some(users) => users.contains(&peer.user),
        None => peer.user == ours,
    };
    if allowed {
        return Ok(());
    }
    Err(format!(
        "user {} is not allowed to connect to a worker of user {ours}: run all workers on a host \
         as one user; in Rust, the options can allow more users",
        peer.user
    ))
}

/// Connects to a name, and agrees on rings if both sides support them.
pub(super) fn dial(
    name: &str,
    options: &TransportOptions,
    attempt: Attempt<'_>,
) -> Result<(OwnedFd, Agreed), TransportError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(TransportError::system("open a Unix socket"))?;
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())
        .map_err(|error| attempt.lost(error.into()))?;
    // A listener whose queue is full returns EAGAIN, and no event reports when it has room again.
    rustix::net::connect(&socket, &address).map_err(|error| attempt.lost(error.into()))?;
    let peer =
        pass::peer(&socket).map_err(TransportError::system("identify the listening process"))?;
    check_user(peer, options).map_err(|reason| TransportError::Refused {
        peer: describe(peer),
        reason,
    })?;
    let (offer, declined) = offer(options);
    greet(&socket, offer.as_ref(), attempt)?;
    let agreed = match (hear(&socket, attempt)?, offer) {
        (SHARED, Some(offer)) => Agreed::Shared(offer.taken()),
        (_, Some(_)) => Agreed::Socket("the peer declined shared memory".to_owned()),
        (_, None) => Agreed::Socket(declined),
    };
    Ok((socket, agreed))
}

/// Creates rings for the peer, or returns the reason why there are none.
fn offer(options: &TransportOptions) -> (Option<Offer>, String) {
    if !options.shared {
        return (None, "shared memory is turned off".to_owned());
    }
    match pair::offer(options.ring) {
        Ok(offer) => (Some(offer), String::new()),
        Err(error) => (None, format!("no shared memory: {error}")),
    }
}

fn greet(
    socket: &OwnedFd,
    offer: Option<&Offer>,
    attempt: Attempt<'_>,
) -> Result<(), TransportError> {
    let message = offer.map_or(NO_RINGS, Offer::message);
    let descriptors = offer.map(Offer::descriptors);
    let mut descriptors: &[BorrowedFd<'_>] = descriptors.as_ref().map_or(&[], |all| all);
    let mut rest = &message[..];
    while !rest.is_empty() {
        let sent = attempt.retry(socket, PollFlags::OUT, "accept the greeting", || {
            match pass::send(socket, &[IoSlice::new(rest)], descriptors) {
                // The peer has already closed. It may have sent a reason.
                Err(error) if has_closed(&error) => Ok(rest.len()),
                sent => sent,
            }
        })?;
        rest = &rest[sent..];
        descriptors = &[];
    }
    Ok(())
}

fn has_closed(error: &io::Error) -> bool {
    let ends = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
    ends.contains(&error.kind())
}

/// Receives the answer to the greeting, or the reason of a refusal.
fn hear(socket: &OwnedFd, attempt: Attempt<'_>) -> Result<u8, TransportError> {
    let mut answer = Vec::new();
    loop {
        let mut piece = [0; 1024];
        // Read one byte first, because other code reads the frames after a positive answer.
        let wanted = if answer.is_empty() { 1 } else { piece.len() };
        let count = attempt.retry(socket, PollFlags::IN, "answer the greeting", || {
            match receive(socket, &mut piece[..wanted]) {
                // The peer closed without reading, which the system reports once. The bytes that
                // the peer sent come next.
                Err(error) if has_closed(&error) => receive(socket, &mut piece[..wanted]),
                received => received,
            }
        })?;
        answer.extend_from_slice(&piece[..count]);
        match answer.first() {
            Some(byte) if [SHARED, SOCKET].contains(byte) => return Ok(*byte),
            _ if count == 0 || answer.len() > 4 << 10 => break,
            _ => {}
        }
    }
    let Some(body) = answer.get(HEADER_LENGTH..) else {
        return Err(attempt.lost(io::ErrorKind::UnexpectedEof.into()));
    };
    Err(TransportError::RefusedBy {
        peer: attempt.peer.to_owned(),
        reason: refusal::reason(body),
    })
}

#[derive(Debug)]
pub(super) struct Greeting {
    socket: OwnedFd,
    message: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl Greeting {
    pub(super) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            message: Vec::new(),
            descriptors: Vec::new(),
        }
    }

    pub(super) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Reads more bytes; `true` if the greeting is complete.
    pub(super) fn advance(&mut self) -> Result<bool, String> {
        while self.message.len() < MESSAGE {
            let mut piece = [0; MESSAGE];
            let wanted = MESSAGE - self.message.len();
            match pass::receive(&self.socket, &mut piece[..wanted]) {
                Ok((0, _)) => {
                    return Err("it closed the connection before its greeting ended".to_owned());
                }
                Ok((count, descriptors)) => {
                    self.message.extend_from_slice(&piece[..count]);
                    self.descriptors.extend(descriptors);
                    if self.descriptors.len() > pair::DESCRIPTORS {
                        return Err("it passed too many descriptors".to_owned());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(true)
    }

    pub(super) fn answer(
        self,
        options: &TransportOptions,
    ) -> Result<(OwnedFd, Agreed), (OwnedFd, String)> {
        let Ok(message) = <[u8; MESSAGE]>::try_from(self.message) else {
            return Err((self.socket, "its greeting has the wrong length".to_owned()));
        };
        let agreed = if message == NO_RINGS {
            Agreed::Socket("the peer offered no shared memory".to_owned())
        } else if !options.shared {
            Agreed::Socket("shared memory is turned off".to_owned())
        } else {
            match pair::accept(&message, self.descriptors) {
                Ok(link) => Agreed::Shared(link),
                // A peer that sends anything but a greeting does not speak this protocol.
                Err(error) if !message.starts_with(b"RZSM") => {
                    return Err((self.socket, error.to_string()));
                }
                Err(error) => Agreed::Socket(format!("no shared memory: {error}")),
            }
        };
        let answer = match agreed {
            Agreed::Shared(_) => SHARED,
            Agreed::Socket(_) => SOCKET,
        };
        // The first byte into a new socket always fits.
        match send(self.socket.as_fd(), &[IoSlice::new(&[answer])]) {
            Ok(_) => Ok((self.socket, agreed)),
            Err(error) => Err((self.socket, error.to_string())),
        }
    }
}
