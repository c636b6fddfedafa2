//! Where a store server listens, given how others will call its host.

use std::net::IpAddr;

/// The address to listen on if `host` is a name of this machine that only it can use: `localhost`
/// or a loopback address. `None`: every address, as in torchelastic, because from here nobody can
/// tell by which of them the others get here.
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
