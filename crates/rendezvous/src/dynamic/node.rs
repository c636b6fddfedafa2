//! How this node shows itself to the others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicI64, Ordering};

use rdzv_rendezvous_proto::NodeDesc;

/// How many nodes this process has been so far; several rendezvous of one process are several nodes.
static NODES: AtomicI64 = AtomicI64::new(0);

/// A new node of this process, under the address that the others can reach it by.
pub fn describe(address: impl Into<String>) -> NodeDesc {
    NodeDesc {
        addr: address.into(),
        pid: i64::from(std::process::id()),
        local_id: NODES.fetch_add(1, Ordering::Relaxed),
    }
}

/// The address that other nodes can reach this one by, without any look-up of names.
///
/// In order: what the user gave (`--local-addr`); where the connection to `endpoint_host` comes
/// from; the endpoint's own name, if that connection does not leave this machine although the others
/// come from elsewhere (a name that this machine resolves to a loopback address); without a
/// connection, the address that this machine would use to reach others.
pub fn advertised(
    given: Option<&str>,
    endpoint_host: Option<&str>,
    connected_from: Option<IpAddr>,
) -> String {
    if let Some(given) = given.filter(|given| !given.is_empty()) {
        return given.to_owned();
    }
    match (connected_from, endpoint_host) {
        (Some(from), Some(host))
            if from.to_canonical().is_loopback() && crate::bind::loopback(host).is_none() =>
        {
            host.to_owned()
        }
        (Some(from), _) => from.to_canonical().to_string(),
        (None, _) => towards_others()
            .unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))
            .to_string(),
    }
}

/// Where packets to elsewhere would come from. Nothing is sent: the address is one of those reserved
/// for documentation, and connecting a datagram socket only asks the routing table.
fn towards_others() -> Option<IpAddr> {
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(elsewhere).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
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
    fn a_loopback_address_is_told_only_to_neighbours() {
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
}
