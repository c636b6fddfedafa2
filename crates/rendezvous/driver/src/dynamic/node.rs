//! Name of this node for others, and detection of endpoints on this machine.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use nix::ifaddrs::getifaddrs;
use rdzv_core::endpoint::bare_host;
use rdzv_rendezvous_proto::NodeDesc;
use rdzv_store::{address_towards_others, resolve};

/// Number of nodes of this process that were described until now.
static NODES: AtomicI64 = AtomicI64::new(0);

/// Describes a new node of this process, with its address for other nodes.
pub fn describe(address: impl Into<String>) -> NodeDesc {
    NodeDesc {
        addr: address.into(),
        pid: i64::from(std::process::id()),
        local_id: NODES.fetch_add(1, Ordering::Relaxed),
    }
}

/// Returns the address of this node for other nodes, without name resolution.
///
/// The first available one of these counts:
///
/// 1. The address that the user specified (`--local-addr`).
/// 2. The name of the endpoint, if the connection to it uses a loopback address although
///    `endpoint_host` is no loopback name. This machine then resolves the name to itself.
/// 3. The local address of the connection to `endpoint_host`.
/// 4. Without a connection, the address from which this machine reaches other machines.
/// 5. `127.0.0.1`.
pub fn advertised(
    given: Option<&str>,
    endpoint_host: Option<&str>,
    connected_from: Option<IpAddr>,
) -> String {
    if let Some(given) = given.map(bare_host).filter(|given| !given.is_empty()) {
        return given.to_owned();
    }
    match (connected_from, endpoint_host) {
        (Some(from), Some(host))
            if from.to_canonical().is_loopback() && crate::bind::loopback(host).is_none() =>
        {
            host.to_owned()
        }
        (Some(from), _) => from.to_canonical().to_string(),
        (None, _) => address_towards_others()
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .to_string(),
    }
}

/// Formats an address as coordinators compare it.
pub(super) fn numeric(address: SocketAddr) -> String {
    SocketAddr::new(address.ip().to_canonical(), address.port()).to_string()
}

/// Returns all local addresses and ports on which these sockets listen.
pub fn addresses(listeners: &[TcpListener]) -> BTreeSet<String> {
    let mut addresses = BTreeSet::new();
    let bound = listeners.iter().map(TcpListener::local_addr);
    for bound in bound.flatten() {
        if bound.ip().is_unspecified() {
            let own = own_addresses().into_iter();
            addresses.extend(own.map(|ip| numeric(SocketAddr::new(ip, bound.port()))));
        } else {
            addresses.insert(numeric(bound));
        }
    }
    addresses
}

/// `true` if `host` (a name or an address) is this machine.
///
/// `false` for a name that does not resolve within `timeout`.
pub fn is_this_machine(host: &str, timeout: Duration) -> bool {
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let named = match resolve(host, 0, Some(timeout)) {
        Ok(named) => named,
        Err(error) => {
            tracing::debug!(host, %error, "the endpoint's name has no address here");
            return false;
        }
    };
    let own = own_addresses();
    named.iter().any(|address| belongs(&address.ip(), &own))
}

fn belongs(address: &IpAddr, own: &[IpAddr]) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || own.contains(&address)
}

/// Returns the addresses of this machine's interfaces.
pub(super) fn own_addresses() -> Vec<IpAddr> {
    let interfaces = match getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::warn!(%error, "cannot read the addresses of this machine's interfaces");
            return Vec::new();
        }
    };
    interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let four = address.as_sockaddr_in().map(|four| IpAddr::V4(four.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|six| IpAddr::V6(six.ip())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(given: Option<&str>, host: Option<&str>, from: Option<&str>) -> String {
        advertised(given, host, from.map(|from| from.parse().unwrap()))
    }

    #[test]
    fn nodes_of_one_process_differ() {
        let (first, second) = (describe("a"), describe("a"));
        assert!(first < second);
        assert_eq!(first.pid, second.pid);
    }

    #[test]
    fn what_the_user_gave_wins() {
        assert_eq!(address(Some("n7"), Some("h"), Some("10.0.0.5")), "n7");
        assert_eq!(address(Some(""), Some("h"), Some("10.0.0.5")), "10.0.0.5");
    }

    #[test]
    fn a_loopback_address_is_announced_only_to_neighbours() {
        for host in ["localhost", "127.0.0.1"] {
            assert_eq!(address(None, Some(host), Some("127.0.0.1")), "127.0.0.1");
        }
        assert_eq!(address(None, Some("node-a"), Some("127.0.1.1")), "node-a");
        assert_eq!(
            address(None, Some("node-a"), Some("::ffff:10.0.0.5")),
            "10.0.0.5"
        );
    }

    #[test]
    fn without_a_connection_there_is_an_address_all_the_same() {
        address(None, None, None).parse::<IpAddr>().unwrap();
    }

    const TIMEOUT: Duration = Duration::from_secs(10);

    #[test]
    fn names_and_addresses_of_this_machine() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1"] {
            assert!(is_this_machine(host, TIMEOUT), "{host}");
        }
        for own in own_addresses() {
            assert!(is_this_machine(&own.to_string(), TIMEOUT), "{own}");
        }
        assert!(!own_addresses().is_empty());
    }

    #[test]
    fn other_machines_are_not_this_one() {
        // The first three are reserved, so no machine has them.
        for host in [
            "192.0.2.1",
            "2001:db8::1",
            "nowhere.invalid",
            "0.0.0.0",
            "::",
        ] {
            assert!(!is_this_machine(host, TIMEOUT), "{host}");
        }
    }

    #[test]
    fn an_address_in_the_other_form_is_the_same() {
        let own = ["10.0.0.5".parse().unwrap()];
        assert!(belongs(&"::ffff:10.0.0.5".parse().unwrap(), &own));
        assert!(!belongs(&"10.0.0.6".parse().unwrap(), &own));
    }
}
