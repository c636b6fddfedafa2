//! The name of this host, as reports and events show it.

use std::fs;

use rdzv_core::escape::escape;

/// The full name of this host: its own if that has a domain, else the one that the hosts file gives
/// for it, else its own. No name server is asked: a report must not wait for one.
pub fn full_name() -> String {
    let name = rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned();
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    escape(&with_domain(&name, &hosts).unwrap_or(name))
}

fn with_domain(name: &str, hosts: &str) -> Option<String> {
    if name.contains('.') {
        return None;
    }
    hosts.lines().find_map(|line| {
        let line = line.split('#').next().unwrap_or_default();
        let names: Vec<&str> = line.split_whitespace().skip(1).collect();
        let full = names
            .iter()
            .find(|other| other.split('.').next() == Some(name) && other.contains('.'))?;
        names.contains(&name).then(|| (*full).to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hosts_file_completes_a_short_name() {
        let hosts = "127.0.0.1 localhost\n10.0.0.4 node-a.example node-a # ours\n";
        assert_eq!(
            with_domain("node-a", hosts).as_deref(),
            Some("node-a.example")
        );
        assert_eq!(with_domain("node-b", hosts), None);
        assert_eq!(with_domain("node-a.other", hosts), None);
    }
}
