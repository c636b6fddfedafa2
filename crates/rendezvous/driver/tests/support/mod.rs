//! Helpers that several test programs share.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use rdzv_rendezvous::{
    BackendRegistry, JoiningAgent, RendezvousBackend, RendezvousConfig, RendezvousParameters,
};
use rdzv_store::{ServerOptions, TcpStoreServer};

/// Creates a node that has not joined yet.
///
/// `nodes` are the minimum and the maximum; `config` is as for `--rdzv-conf`.
pub(crate) fn node(
    backend: &str,
    endpoint: &str,
    run_id: &str,
    (least, most): (u32, u32),
    config: &str,
) -> Box<dyn RendezvousBackend> {
    let config = RendezvousConfig::parse(config).unwrap();
    let parameters =
        RendezvousParameters::new(backend, endpoint, run_id, least, most, config).unwrap();
    BackendRegistry::with_defaults()
        .create(&parameters)
        .unwrap()
}

/// Returns an agent with one worker.
pub(crate) fn member() -> JoiningAgent {
    JoiningAgent {
        role: "default".to_owned(),
        local_world_size: 1,
        share_store: true,
        master_port: None,
        lost: Vec::new(),
    }
}

/// Starts a store server that runs no rendezvous.
pub(crate) fn server() -> TcpStoreServer {
    TcpStoreServer::start(ServerOptions {
        host: Some("127.0.0.1".to_owned()),
        ..ServerOptions::default()
    })
    .unwrap()
}
