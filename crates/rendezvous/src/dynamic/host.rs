//! Whether this machine is the one that an endpoint names.
//!
//! The name is resolved once, forwards, and the result compared with the addresses of this machine's
//! interfaces. So a second network card, an alias in the DNS or a service name is recognised, which
//! the reference does not; nothing is ever looked up backwards.

use std::net::{IpAddr, ToSocketAddrs};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nix::ifaddrs::getifaddrs;

/// Whether `host` (a name or an address) is this machine. A name that cannot be resolved within
/// `patience` is not.
pub fn is_this_machine(host: &str, patience: Duration) -> bool {
    if host.eq_ignore_ascii_case("localhost") {
        return true;
    }
    let named = match host.parse::<IpAddr>() {
        Ok(address) => vec![address],
        Err(_) => resolve(host, patience),
    };
    let own = own_addresses();
    named.iter().any(|address| belongs(address, &own))
}

fn belongs(address: &IpAddr, own: &[IpAddr]) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || own.contains(&address)
}

/// The addresses of this machine's interfaces.
fn own_addresses() -> Vec<IpAddr> {
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

fn resolve(host: &str, patience: Duration) -> Vec<IpAddr> {
    // A look-up cannot be interrupted, so it gets a thread that may stay behind.
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = host.to_owned();
    let thread = thread::Builder::new()
        .name("rdzv-resolve".to_owned())
        .spawn(move || {
            let found = (name.as_str(), 0)
                .to_socket_addrs()
                .map(|found| found.map(|address| address.ip()).collect::<Vec<_>>());
            let _nobody_waits_any_more = sender.send(found);
        });
    match thread.map(|_| receiver.recv_timeout(patience)) {
        Ok(Ok(Ok(addresses))) => addresses,
        failed => {
            tracing::debug!(host, ?failed, "the endpoint's name has no address here");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn names_and_addresses_of_this_machine() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.8.7", "::1"] {
            assert!(is_this_machine(host, PATIENCE), "{host}");
        }
        for own in own_addresses() {
            assert!(is_this_machine(&own.to_string(), PATIENCE), "{own}");
        }
        assert!(!own_addresses().is_empty());
    }

    #[test]
    fn other_machines_are_not_this_one() {
        // The first three are reserved and belong to nobody.
        for host in [
            "192.0.2.1",
            "2001:db8::1",
            "nowhere.invalid",
            "0.0.0.0",
            "::",
        ] {
            assert!(!is_this_machine(host, PATIENCE), "{host}");
        }
    }

    #[test]
    fn an_address_in_the_other_form_is_the_same() {
        let own = ["10.0.0.5".parse().unwrap()];
        assert!(belongs(&"::ffff:10.0.0.5".parse().unwrap(), &own));
        assert!(!belongs(&"10.0.0.6".parse().unwrap(), &own));
    }
}
