//! Address of a worker, as published in the store.

use std::fmt;
use std::fs;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

/// Address of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerAddress {
    /// Boot id of the worker's host; empty if it cannot be read.
    pub host: String,
    /// Process id of the worker in its own PID namespace.
    pub process: u32,
    /// Listening address for TCP; numeric, so that no name has to be resolved.
    pub address: SocketAddr,
    /// `true` if the worker requires TLS at this address.
    pub tls: bool,
    /// Name of the worker's abstract Unix socket, if it has one.
    pub unix: Option<String>,
}

/// Returns the boot id of this host, or an empty text if it cannot be read.
///
/// All processes and containers of the host have the same boot id, which changes at a reboot.
pub fn host_identity() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

impl PeerAddress {
    /// `true` if the worker is on the host with this identity.
    pub fn is_on(&self, host: &str) -> bool {
        !host.is_empty() && self.host == host
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "process {} at {}", self.process, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_an_identity_that_stays() {
        assert_eq!(host_identity().len(), 36);
        assert_eq!(host_identity(), host_identity());
    }

    #[test]
    fn a_peer_address_is_published_and_read_again() {
        let peer_address = PeerAddress {
            host: host_identity(),
            process: 7,
            address: "[::1]:99".parse().unwrap(),
            tls: true,
            unix: Some("name".to_owned()),
        };
        let bytes = postcard::to_extend(&peer_address, Vec::new()).unwrap();
        assert_eq!(postcard::from_bytes(&bytes), Ok(peer_address.clone()));
        assert!(peer_address.is_on(&host_identity()));
        assert!(!peer_address.is_on("another"));
        let nowhere = PeerAddress {
            host: String::new(),
            ..peer_address
        };
        assert!(!nowhere.is_on(""));
    }
}
