//! Backends under test: one [`RunBackend`] for each.

use std::sync::Arc;

use rdzv_rendezvous::RendezvousBackend;
use rdzv_store::TcpStoreServer;
use rdzv_testing::free_port;
use tempfile::TempDir;

use crate::server::Server;
use crate::support;

/// Name of a run, or its prefix.
const RUN: &str = "run";

/// Backend for one run.
pub(crate) trait RunBackend: Sync {
    /// Creates a node that has not joined yet.
    ///
    /// `nodes` are the minimum and the maximum; `config` is as for `--rdzv-conf`.
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend>;
}

pub(crate) struct PlainStore(TcpStoreServer);

impl Default for PlainStore {
    fn default() -> Self {
        Self(support::server())
    }
}

impl RunBackend for PlainStore {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let endpoint = format!("127.0.0.1:{}", self.0.port());
        make("c10d", &endpoint, RUN, nodes, &["is_host=0", config])
    }
}

pub(crate) struct File(TempDir);

impl Default for File {
    fn default() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl RunBackend for File {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let path = self.0.path().join("state").display().to_string();
        make("c10d", &path, RUN, nodes, &["store_type=file", config])
    }
}

/// The first node hosts the store at this port; the others find it.
pub(crate) struct Hosted(u16);

impl Default for Hosted {
    fn default() -> Self {
        Self(free_port())
    }
}

impl RunBackend for Hosted {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let endpoint = format!("localhost:{}", self.0);
        make("c10d", &endpoint, RUN, nodes, &[config])
    }
}

/// A separate run in a server that all tests share.
pub(crate) struct Etcd {
    server: Arc<Server>,
    run_id: String,
}

impl Default for Etcd {
    fn default() -> Self {
        Self {
            server: Server::shared(),
            run_id: format!("{RUN}-{:016x}", fastrand::u64(..)),
        }
    }
}

impl RunBackend for Etcd {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let endpoint = self.server.endpoint().to_string();
        make("etcd", &endpoint, &self.run_id, nodes, &[config])
    }
}

fn make(
    backend: &str,
    endpoint: &str,
    run_id: &str,
    nodes: (u32, u32),
    config: &[&str],
) -> Box<dyn RendezvousBackend> {
    let parts = config.iter().copied().filter(|part| !part.is_empty());
    let config = parts.collect::<Vec<_>>().join(",");
    support::node(backend, endpoint, run_id, nodes, &config)
}
