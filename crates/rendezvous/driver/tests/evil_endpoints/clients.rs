//! Clients of rdzv, each with one call that needs an answer.

use std::time::Duration;

use rdzv_store::{Store, TcpStore, TcpStoreOptions};

use crate::support;

/// Time limit for a client to find its server.
const TIMEOUT: Duration = Duration::from_secs(3);

/// Maximum size of the replies to [`Client::Get`] and [`Client::List`].
pub(crate) const MAX_REPLY: usize = 1 << 20;

/// Client of rdzv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Client {
    /// Store client that reads a value.
    Get,
    /// Store client that lists all keys.
    List,
    /// Agent with the backend `c10d`.
    C10d,
    /// Agent with the backend `etcd`.
    Etcd,
}

impl Client {
    /// Returns the error of the client about the endpoint.
    pub(crate) fn complaint(self, port: u16) -> String {
        match self {
            Self::Get => at_store(port, |store| store.get("key").map(drop)),
            Self::List => at_store(port, |store| store.list_keys().map(drop)),
            Self::C10d => join(port, "c10d", "is_host=0"),
            Self::Etcd => join(port, "etcd", "protocol=http"),
        }
    }
}

fn at_store(
    port: u16,
    ask: impl FnOnce(&TcpStore) -> Result<(), rdzv_store::StoreError>,
) -> String {
    let asked = TcpStore::connect(TcpStoreOptions {
        timeout: TIMEOUT,
        max_reply_bytes: MAX_REPLY,
        ..TcpStoreOptions::new("127.0.0.1", port)
    })
    .and_then(|store| ask(&store));
    asked.unwrap_err().to_string()
}

fn join(port: u16, backend: &str, config: &str) -> String {
    let config = format!("join_timeout=5,read_timeout={},{config}", TIMEOUT.as_secs());
    let endpoint = format!("127.0.0.1:{port}");
    let mut node = support::node(backend, &endpoint, "run", (1, 1), &config);
    node.join(&support::member()).unwrap_err().to_string()
}
