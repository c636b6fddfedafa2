//! TCP sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rdzv_rpc_proto::heartbeat::Rhythm;
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use super::error::TransportError;
use super::tcp_info;
use super::wait::Attempt;

pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, TransportError> {
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(TransportError::system(format!("listen on {address}")))
}

/// Connects and waits for the connection.
///
/// The wait takes at most `heartbeat_limit`, because a host that is down does not answer.
pub(super) fn dial(
    address: SocketAddr,
    heartbeat_limit: Duration,
    attempt: Attempt<'_>,
) -> Result<OwnedFd, TransportError> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(TransportError::system("open a TCP socket"))?;
    tune(&socket, heartbeat_limit).map_err(TransportError::system("set up a TCP socket"))?;
    let begun = Instant::now();
    let attempt = Attempt {
        since: begun,
        deadline: attempt.deadline.min(begun + heartbeat_limit),
        ..attempt
    };
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            attempt.wait(&socket, PollFlags::OUT, "answer")?;
            let outcome = sockopt::socket_error(&socket);
            let outcome = outcome.map_err(TransportError::system("check the connection"))?;
            outcome.map_err(|error| attempt.lost(error.into()))?;
        }
        Err(error) => return Err(attempt.lost(rdzv_store::connect_error(error.into()))),
    }
    Ok(socket)
}

/// Disables Nagle's algorithm, and makes TCP notice a host that has vanished.
///
/// TCP notices this with and without data in flight. During the greeting, data must be acknowledged
/// in time, because both peers read all data that arrives. Later, the heartbeat
/// [checks](super::tcp_info::seen) the host instead.
pub(super) fn tune(socket: impl AsFd, heartbeat_limit: Duration) -> io::Result<()> {
    let rhythm = Rhythm::new(heartbeat_limit);
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    sockopt::set_tcp_keepidle(&socket, rhythm.beat())?;
    sockopt::set_tcp_keepintvl(&socket, rhythm.beat())?;
    sockopt::set_tcp_keepcnt(&socket, rhythm.probes())?;
    let millis = u32::try_from(rhythm.limit().as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&socket, millis)?;
    tcp_info::retry_every(&socket, rhythm.beat());
    Ok(())
}
