//! Binding the server's socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;

use socket2::{Domain, Protocol, Socket, Type};

use crate::StoreError;

/// Asks for the longest queue of pending connections that the kernel allows (`somaxconn`).
const BACKLOG: i32 = i32::MAX;

/// Listens on `port` of `host`, non-blocking.
///
/// Without a host: on all addresses, IPv6 and IPv4 on one socket where the system has IPv6. With
/// one: on exactly the first of its addresses that can be bound; a name is looked up once, here.
pub(super) fn listen(host: Option<&str>, port: u16) -> Result<TcpListener, StoreError> {
    let Some(host) = host else {
        let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        return match bind(everywhere) {
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                let everywhere = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
                bind(everywhere).map_err(|error| refused(everywhere.to_string(), error))
            }
            bound => bound.map_err(|error| refused(everywhere.to_string(), error)),
        };
    };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = (bare, port)
        .to_socket_addrs()
        .map_err(|error| refused(format!("{host}:{port}"), error))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match bind(address) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(refused(format!("{host}:{port}"), last))
}

/// Listens on a socket that somebody else has bound; `port` is 0 or the port it is bound to.
pub(super) fn adopt(listener: TcpListener, port: u16) -> Result<TcpListener, StoreError> {
    let adopted = || -> io::Result<u16> {
        rustix::net::listen(&listener, BACKLOG)?;
        prepare(&listener)?;
        Ok(listener.local_addr()?.port())
    };
    let descriptor = listener.as_raw_fd();
    let bound = adopted().map_err(|error| refused(format!("descriptor {descriptor}"), error))?;
    if port != 0 && port != bound {
        return Err(StoreError::Argument(format!(
            "listen fd {descriptor} is bound to port {bound}, expected to be bound to port {port}"
        )));
    }
    Ok(listener)
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    // A port whose last connections are still fading out can be taken again at once.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from(socket);
    prepare(&listener)?;
    Ok(listener)
}

fn prepare(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // Accepted sockets inherit this, which saves a system call for each of them.
    rustix::net::sockopt::set_tcp_nodelay(listener, true)?;
    Ok(())
}

fn refused(address: String, source: io::Error) -> StoreError {
    StoreError::Listen { address, source }
}
