//! Keeping a port free for a worker that will listen at it.

use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};

use socket2::{Domain, Protocol, Socket, Type};

/// Takes a port, 0 for a free one, at the first address that can be had, without listening at it.
///
/// Nobody gets this port by asking for a free one, or without the option to share addresses, for as
/// long as the socket is held. But who sets that option (`SO_REUSEADDR`), as stores and most servers
/// do, can listen there at once: so the socket may be held until the worker that the port is for has
/// been started, however soon that listens.
pub fn reserve_port(place: impl ToSocketAddrs) -> io::Result<TcpListener> {
    let mut result = Err(io::ErrorKind::AddrNotAvailable.into());
    for address in place.to_socket_addrs()? {
        result = bind(address);
        if result.is_ok() {
            break;
        }
    }
    result
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use super::*;

    #[test]
    fn whoever_shares_addresses_can_listen_at_a_port_that_is_kept_and_others_cannot_take_it() {
        let loopback = Ipv4Addr::LOCALHOST;
        let kept = reserve_port((loopback, 0)).unwrap();
        let port = kept.local_addr().unwrap().port();
        let without = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
        let address = SocketAddr::from((loopback, port));
        assert!(without.bind(&address.into()).is_err());
        // The standard library's listeners share, on every address of the host.
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind(address))
            .unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), port);
        assert!(std::net::TcpStream::connect(address).is_ok());
    }
}
