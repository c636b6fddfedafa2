//! The options of a TCP store client, and the server that a master starts.

use std::collections::HashMap;
use std::net::TcpListener;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use rdzv_lock::Mutex;
use rdzv_store_proto::limits::{Limits, MAX_REPLY_BYTES};
use rdzv_store_proto::server::Extension;

use rdzv_trust::Credentials;

use super::server::{Admission, ServerOptions, TcpStoreServer, TorchClients};
use crate::StoreError;
use crate::deadline::DEFAULT_TIMEOUT;

/// The shared servers of this process, by port.
/// The table does not keep them alive.
static SHARED: LazyLock<Mutex<HashMap<u16, Weak<TcpStoreServer>>>> = LazyLock::new(Mutex::default);

/// Options of [`TcpStore::connect`](crate::TcpStore::connect).
#[derive(Debug)]
pub struct TcpStoreOptions {
    /// Name or address of the server's host; an IPv6 address without brackets.
    pub host: String,
    /// Port of the server. For a master, 0 lets the system choose.
    pub port: u16,
    /// Number of clients of the job; `None` if it is not known.
    pub world_size: Option<u32>,
    /// `true` to start the server in this process; default `false`.
    /// The server ends when the last store object of this process that belongs to it is dropped.
    pub is_master: bool,
    /// Limit of everything that `connect` does, and of later waits; default 300 s.
    pub timeout: Duration,
    /// `true` to retry until `timeout` while there is no server; default `true`.
    pub wait_for_server: bool,
    /// `true` to count the clients that have joined, if `world_size` is known.
    /// The master waits until all have joined. Default `true`.
    pub wait_for_workers: bool,
    /// `true` if masters of this process with the same port share one server.
    /// Only servers that were started with this option are shared. Default `false`.
    pub multi_tenant: bool,
    /// Maximum memory for one reply of the server; default 64 MiB.
    /// A longer reply ends the use of the connection.
    pub max_reply_bytes: usize,
    /// Master: a bound socket. `port` must be its port, or 0.
    pub listener: Option<TcpListener>,
    /// Master: the only address to listen on.
    /// `None` means every address of this host.
    pub bind: Option<String>,
    /// Credentials that this client shows, and that it requires from the server.
    /// Default: none.
    pub credentials: Credentials,
    /// Master: the clients that need no such proof; default [`TorchClients::Job`].
    pub torch_clients: TorchClients,
    /// Master: the keys that those clients cannot reach.
    /// See [`Admission::agent_prefix`].
    pub agent_prefix: Option<Vec<u8>>,
    /// Master: the limits of the server.
    pub limits: Limits,
    /// Master: `true` if an agent may host the store at this port for all workers.
    /// That is `TORCHELASTIC_USE_AGENT_STORE`. Then a port in use makes this process a client.
    /// Default `false`.
    pub agent_hosts: bool,
    /// Master: answers requests that a store does not know.
    /// A shared server keeps its own extension.
    pub extension: Option<Box<dyn Extension>>,
}

impl TcpStoreOptions {
    /// Creates options for a client of the server at `host` and `port`.
    /// They have the defaults above and no world size.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            world_size: None,
            is_master: false,
            timeout: DEFAULT_TIMEOUT,
            wait_for_server: true,
            wait_for_workers: true,
            multi_tenant: false,
            max_reply_bytes: MAX_REPLY_BYTES,
            listener: None,
            bind: None,
            credentials: Credentials::default(),
            torch_clients: TorchClients::default(),
            agent_prefix: None,
            limits: Limits::default(),
            agent_hosts: false,
            extension: None,
        }
    }

    /// Starts the server, or finds the shared one. `None` if the agent hosts it.
    pub(super) fn host(&mut self) -> Result<Option<Arc<TcpStoreServer>>, StoreError> {
        // The lock is held while the server starts. So of two concurrent masters one starts the
        // server and both share it.
        let mut shared = self.multi_tenant.then(|| SHARED.lock());
        if let Some(shared) = &mut shared {
            shared.retain(|_, server| server.strong_count() > 0);
            if let Some(server) = shared.get(&self.port).and_then(Weak::upgrade) {
                return Ok(Some(server));
            }
        }
        let server = TcpStoreServer::start(ServerOptions {
            host: self.bind.clone(),
            port: self.port,
            listeners: Vec::from_iter(self.listener.take()),
            limits: self.limits,
            admission: Admission {
                credentials: self.credentials.clone(),
                torch_clients: self.torch_clients,
                agent_prefix: self.agent_prefix.take(),
            },
            extension: self.extension.take(),
            ..ServerOptions::default()
        });
        match server {
            Ok(server) => {
                let server = Arc::new(server);
                if let Some(shared) = &mut shared {
                    shared.insert(server.port(), Arc::downgrade(&server));
                }
                Ok(Some(server))
            }
            Err(error @ StoreError::Listen { .. }) if self.agent_hosts => {
                tracing::info!(%error, "the agent hosts the store; going on as its client");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
