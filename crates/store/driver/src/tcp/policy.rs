//! One policy for all stores of a process: limits and proof of membership.

use std::net::ToSocketAddrs;
use std::time::Duration;

use rdzv_store_proto::limits::Limits;
use rdzv_trust::Credentials;

use super::client::TcpStore;
use super::options::TcpStoreOptions;
use super::server::{Admission, ServerOptions, TorchClients};
use crate::StoreError;

/// The policy by which a process hosts stores, and reaches those of others.
#[derive(Debug, Clone, Default)]
pub struct StorePolicy {
    /// Limits of the stores that the process hosts.
    pub limits: Limits,
    /// Credentials that the process shows, and requires from others.
    pub credentials: Credentials,
    /// Clients of its stores that need no proof.
    pub torch_clients: TorchClients,
}

impl StorePolicy {
    /// Returns the options of a server at this port.
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

    /// Returns the options of a client of the store at `host` and `port`.
    pub fn client(&self, host: impl Into<String>, port: u16) -> TcpStoreOptions {
        TcpStoreOptions {
            credentials: self.credentials.clone(),
            torch_clients: self.torch_clients,
            limits: self.limits,
            ..TcpStoreOptions::new(host, port)
        }
    }

    /// Makes this node's addresses known to a workers' store.
    ///
    /// Then the store at `host` and `port` admits the workers of this node, which have no proof.
    /// Nothing is done if there are no credentials, or if workers are not admitted by their
    /// address.
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
        // Workers may use another address of the store, and then come from another address of this
        // node.
        let others = (host, port).to_socket_addrs().into_iter().flatten();
        for other in others.filter(|other| *other != first) {
            if let Err(error) = reach(&other.ip().to_string()) {
                tracing::debug!(%error, "the workers' store is not reached at another address");
            }
        }
        Ok(())
    }
}
