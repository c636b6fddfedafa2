//! Binding the server's socket.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs as _};
use std::os::fd::AsRawFd as _;

use rdzv_core::endpoint::{Endpoint, bare_host};
use socket2::{Domain, Protocol, Socket, Type};

use crate::StoreError;
use crate::port_user::explained;

/// Requests the longest queue of pending connections (`somaxconn`).
const BACKLOG: i32 = i32::MAX;

/// Maximum number of attempts to find a port that is free in both families.
const PORT_ATTEMPTS: usize = 16;

/// Listens on `port` of `host`, non-blocking.
///
/// Without a host, it listens on all addresses, with a socket for each address family of the
/// system. With a host, it listens on exactly the first of its addresses that can be bound. A name
/// is looked up once, here.
pub(super) fn listen(host: Option<&str>, port: u16) -> Result<Vec<TcpListener>, StoreError> {
    let Some(host) = host else {
        return everywhere(port).map_err(|error| {
            let error = explained(port, error);
            refused(format!("port {port} of all addresses"), error)
        });
    };
    let host = bare_host(host);
    let endpoint = Endpoint {
        host: host.to_owned(),
        port,
    };
    let addresses = (host, port)
        .to_socket_addrs()
        .map_err(|error| refused(endpoint.to_string(), error))?;
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match bind(address) {
            Ok(listener) => return Ok(vec![listener]),
            Err(error) => last = error,
        }
    }
    Err(refused(endpoint.to_string(), explained(port, last)))
}

/// Binds a separate socket for IPv4, instead of one that accepts both families.
/// With a socket for both families, the kernel spends about 3 % more on every request of an IPv4
/// peer.
fn everywhere(port: u16) -> io::Result<Vec<TcpListener>> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let six = match bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))) {
            Ok(listener) => listener,
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
            // This host has no IPv6.
            Err(_) => return Ok(vec![bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)))?]),
        };
        let same_port = six.local_addr()?.port();
        match bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, same_port))) {
            Ok(four) => return Ok(vec![six, four]),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Ok(vec![six]),
            Err(_) if port == 0 && attempts < PORT_ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
}

/// Listens on a socket that is bound already; `port` is 0 or the bound port.
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
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // This allows binding a port whose last connections are still in the state TIME-WAIT.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from(socket);
    prepare(&listener)?;
    Ok(listener)
}

fn prepare(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    // Accepted sockets inherit this, which saves one system call per connection.
    rustix::net::sockopt::set_tcp_nodelay(listener, true)?;
    Ok(())
}

fn refused(address: String, source: io::Error) -> StoreError {
    StoreError::Listen { address, source }
}
