//! One rule for all stores of a process: their bounds, and the proof of membership.

use std::net::ToSocketAddrs;
use std::time::Duration;

use rdzv_store_proto::limits::Limits;
use rdzv_trust::Credentials;

use super::client::TcpStore;
use super::options::TcpStoreOptions;
use super::server::{Admission, ServerOptions, TorchClients};
use crate::StoreError;

/// The rule by which a process hosts stores for its job, and reaches those of others.
#[derive(Debug, Clone, Default)]
pub struct StorePolicy {
    /// The bounds of the stores that it hosts.
    pub limits: Limits,
    /// The credentials that it shows, and demands of others.
    pub credentials: Credentials,
    /// The clients of its stores that need not prove anything.
    pub torch_clients: TorchClients,
}

impl StorePolicy {
    /// The options of a server at this port.
    pub fn server(&self, host: Option<String>, port: u16) -> ServerOptions {
        ServerOptions {
            host,
            port,
            limits: self.limits,
            admission: Admission {
                credentials: self.credentials.clone(),
                torch_clients: self.torch_clients,
                agent_prefix: None,
            },
            ..ServerOptions::default()
        }
    }

    /// The options of a client of the store at `host` and `port`.
    pub fn client(&self, host: impl Into<String>, port: u16) -> TcpStoreOptions {
        TcpStoreOptions {
            credentials: self.credentials.clone(),
            torch_clients: self.torch_clients,
            limits: self.limits,
            ..TcpStoreOptions::new(host, port)
        }
    }

    /// Has the workers' store at `host` and `port` know this node's addresses, so that it admits the workers
    /// here, which prove nothing. Nothing is done if there are no credentials, or if workers are not
    /// admitted by their address.
    ///
    /// # Errors
    ///
    /// Those of [`TcpStore::connect`](crate::TcpStore::connect).
    pub fn announce_workers(
        &self,
        host: &str,
        port: u16,
        within: Duration,
    ) -> Result<(), StoreError> {
        if self.credentials.is_empty() || self.torch_clients != TorchClients::Job {
            return Ok(());
        }
        let reach = |host: &str| {
            TcpStore::connect(TcpStoreOptions {
                timeout: within,
                ..self.client(host, port)
            })
        };
        let first = reach(host)?.peer();
        // Workers may take another one of its addresses, and then come from another one of ours.
        let others = (host, port).to_socket_addrs().into_iter().flatten();
        for other in others.filter(|other| *other != first) {
            if let Err(error) = reach(&other.ip().to_string()) {
                tracing::debug!(%error, "the workers' store is not reached at another address");
            }
        }
        Ok(())
    }
}
