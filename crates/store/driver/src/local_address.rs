//! Address of this host as other hosts see it.
//!
//! The functions query the routing table: they connect a datagram socket, which sends no packets.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

/// Address that represents all other networks. It is never assigned (RFC 5737).
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Port of the discard service. Any other port would work too.
const DISCARD: u16 = 9;

/// Returns the local address that this host uses to reach `host`.
///
/// `host` is a name or an address. Names are resolved.
///
/// # Errors
///
/// Returns an error if `host` has no address, or if there is no route to any of its addresses.
pub fn address_towards(host: &str) -> io::Result<IpAddr> {
    let mut result = Err(io::Error::new(
        io::ErrorKind::NotFound,
        format!("{host} has no address"),
    ));
    for target in (host, DISCARD).to_socket_addrs()? {
        result = local_address(target);
        if result.is_ok() {
            break;
        }
    }
    result
}

/// Returns the local address that this host uses to reach other networks.
/// Returns `None` if there is no route to other networks.
pub fn address_towards_others() -> Option<IpAddr> {
    let address = local_address((OUTSIDE, DISCARD).into()).ok()?;
    (!address.is_unspecified()).then_some(address)
}

/// Returns this host's address for processes that share a store at `host`.
/// `own` is the local address that this host uses to reach `host`. Usually, the result is `own`. It
/// is the address for other networks if `own` is a loopback address, but `host` is neither
/// `localhost` nor an address. In that case, `None` means that there is no route to them.
pub fn address_for_others(host: &str, own: IpAddr) -> Option<IpAddr> {
    let own = own.to_canonical();
    // A host often resolves its own name to a loopback address, which other hosts cannot use.
    let is_here = host == "localhost" || host.parse::<IpAddr>().is_ok();
    if own.is_loopback() && !is_here {
        address_towards_others()
    } else {
        Some(own)
    }
}

/// Returns the local address that this host uses to reach `target`.
///
/// # Errors
///
/// Returns an error if there is no route to the target.
pub fn local_address(target: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(target)?;
    Ok(socket.local_addr()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_loopback_begins_at_loopback() {
        assert_eq!(address_towards("127.0.0.1").unwrap(), Ipv4Addr::LOCALHOST);
        assert!(address_towards("localhost").unwrap().is_loopback());
        let six = SocketAddr::from((Ipv6Addr::LOCALHOST, DISCARD));
        assert!(local_address(six).is_err() || local_address(six).unwrap().is_loopback());
    }
}
