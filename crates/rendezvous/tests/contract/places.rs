//! Where nodes meet: one for every backend.

use std::net::TcpListener;

use rdzv_rendezvous::{BackendRegistry, RendezvousBackend, RendezvousParameters, parse_config};
use rdzv_store::{ServerOptions, TcpStoreServer};
use tempfile::TempDir;

/// A place for one run.
pub(crate) trait Place: Sync {
    /// A node that has not joined yet. `nodes` are the fewest and the most; `config` is as for
    /// `--rdzv-conf`.
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend>;
}

pub(crate) struct PlainStore(TcpStoreServer);

impl Default for PlainStore {
    fn default() -> Self {
        let options = ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            ..ServerOptions::default()
        };
        Self(TcpStoreServer::start(options).unwrap())
    }
}

impl Place for PlainStore {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let endpoint = format!("127.0.0.1:{}", self.0.port());
        make("c10d", &endpoint, nodes, &["is_host=0", config])
    }
}

pub(crate) struct File(TempDir);

impl Default for File {
    fn default() -> Self {
        Self(TempDir::new().unwrap())
    }
}

impl Place for File {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let path = self.0.path().join("state").display().to_string();
        make("c10d", &path, nodes, &["store_type=file", config])
    }
}

/// The first node hosts the store; the others find it.
pub(crate) struct Hosted(u16);

impl Default for Hosted {
    fn default() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Self(listener.local_addr().unwrap().port())
    }
}

impl Place for Hosted {
    fn node(&self, nodes: (u32, u32), config: &str) -> Box<dyn RendezvousBackend> {
        let endpoint = format!("localhost:{}", self.0);
        make("c10d", &endpoint, nodes, &[config])
    }
}

fn make(
    backend: &str,
    endpoint: &str,
    (least, most): (u32, u32),
    config: &[&str],
) -> Box<dyn RendezvousBackend> {
    let config: Vec<&str> = config
        .iter()
        .copied()
        .filter(|part| !part.is_empty())
        .collect();
    let config = parse_config(&config.join(",")).unwrap();
    let parameters =
        RendezvousParameters::new(backend, endpoint, "run", least, most, config).unwrap();
    BackendRegistry::with_defaults()
        .create(&parameters)
        .unwrap()
}
