//! TCP sockets.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt};

use super::error::TransportError;
use super::wait::Patience;

/// Listens at an address.
pub(super) fn listen(address: SocketAddr) -> Result<TcpListener, TransportError> {
    let listener = TcpListener::bind(address)
        .and_then(|listener| listener.set_nonblocking(true).map(|()| listener));
    listener.map_err(TransportError::system(format!("listen at {address}")))
}

/// Connects, waiting for it.
pub(super) fn dial(
    address: SocketAddr,
    silence: Duration,
    patience: Patience<'_>,
) -> Result<OwnedFd, TransportError> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, Some(ipproto::TCP))
        .map_err(TransportError::system("open a TCP socket"))?;
    tune(&socket, silence).map_err(TransportError::system("set up a TCP socket"))?;
    match rustix::net::connect(&socket, &address) {
        Ok(()) => {}
        Err(Errno::INPROGRESS | Errno::INTR) => {
            patience.wait(&socket, PollFlags::OUT, "answered")?;
            let outcome = sockopt::socket_error(&socket);
            let outcome = outcome.map_err(TransportError::system("see whether it connected"))?;
            outcome.map_err(|error| patience.lost(error.into()))?;
        }
        Err(error) => return Err(patience.lost(error.into())),
    }
    Ok(socket)
}

/// No waiting for more to send, and a peer whose host vanished is noticed, whether something is on
/// its way to it or not.
pub(super) fn tune(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    const PROBES: u32 = 4;
    sockopt::set_tcp_nodelay(&socket, true)?;
    sockopt::set_socket_keepalive(&socket, true)?;
    // Half of the time without a word, then probes for the other half.
    let second = Duration::from_secs(1);
    sockopt::set_tcp_keepidle(&socket, (silence / 2).max(second))?;
    sockopt::set_tcp_keepintvl(&socket, (silence / 2 / PROBES).max(second))?;
    sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    let millis = u32::try_from(silence.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&socket, millis)?;
    Ok(())
}
