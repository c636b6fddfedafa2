//! Limits and proof of membership that apply to all stores of a process.

use std::net::ToSocketAddrs;
use std::time::Duration;

use rdzv_store_proto::limits::Limits;
use rdzv_trust::Credentials;

use super::client::TcpStore;
use super::options::TcpStoreOptions;
use super::server::{Admission, ServerOptions, TorchClients};
use crate::StoreError;

/// Policy for the stores that a process hosts, and for those it connects to.
#[derive(Debug, Clone, Default)]
pub struct StorePolicy {
    /// Limits of the stores that the process hosts.
    pub limits: Limits,
    /// Credentials that the process presents, and requires from others.
    pub credentials: Credentials,
    /// Clients of the hosted stores that need no proof.
    pub torch_clients: TorchClients,
}

impl StorePolicy {
    /// Returns the options for a server at this port.
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

    /// Returns the options for a client of the store at `host` and `port`.
    pub fn client(&self, host: impl Into<String>, port: u16) -> TcpStoreOptions {
        TcpStoreOptions {
            credentials: self.credentials.clone(),
            torch_clients: self.torch_clients,
            limits: self.limits,
            ..TcpStoreOptions::new(host, port)
        }
    }

    /// Registers this node's addresses with a workers' store.
    ///
    /// The store at `host` and `port` then admits the workers of this node, which have no proof of
    /// membership. This method does nothing if there are no credentials, or if the store does not
    /// admit workers by their address.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`TcpStore::connect`](crate::TcpStore::connect).
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
        // Workers may use another address of the store, and may then connect from another address
        // of this node.
        let others = (host, port).to_socket_addrs().into_iter().flatten();
        for other in others.filter(|other| *other != first) {
            if let Err(error) = reach(&other.ip().to_string()) {
                tracing::debug!(
                    %error,
                    "cannot determine whether the workers' store has another address"
                );
            }
        }
        Ok(())
    }
}
