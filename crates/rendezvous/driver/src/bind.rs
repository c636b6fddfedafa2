//! Choice of the address on which a store server listens.

use std::net::IpAddr;

/// Returns the loopback address that `host` names, for a server to listen on.
///
/// Returns `None` for every name except `localhost` and loopback addresses. The server then listens
/// on all addresses, as in torchelastic, because this machine cannot tell which of its addresses
/// the other machines use.
pub(crate) fn loopback(host: &str) -> Option<String> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some("127.0.0.1".to_owned());
    }
    let address: IpAddr = host.parse().ok()?;
    address.is_loopback().then(|| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::loopback;

    #[test]
    fn only_names_of_this_machine_to_itself_are_bound() {
        let bound = |host| loopback(host).unwrap_or_default();
        assert_eq!(bound("LocalHost"), "127.0.0.1");
        assert_eq!(bound("127.0.0.7"), "127.0.0.7");
        assert_eq!(bound("::1"), "::1");
        for host in ["0.0.0.0", "10.0.0.1", "::", "node-a", ""] {
            assert_eq!(loopback(host), None, "{host}");
        }
    }
}
