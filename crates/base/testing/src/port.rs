//! Free ports.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;

use socket2::{Domain, Protocol, Socket, Type};

/// Returns a free port at which no process listens.
///
/// The port stays bound on all addresses until the test program ends, so that a request for a free
/// port does not return it again. A program that sets `SO_REUSEADDR`, as stores and most servers
/// do, can listen on the port.
pub fn free_port() -> u16 {
    static HELD: Mutex<Vec<Socket>> = Mutex::new(Vec::new());
    let socket =
        bound(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bound(Ipv4Addr::UNSPECIFIED.into()));
    let socket = socket.unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    HELD.lock().unwrap().push(socket);
    address.port()
}

fn bound(address: std::net::IpAddr) -> io::Result<Socket> {
    let address = SocketAddr::new(address, 0);
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}
