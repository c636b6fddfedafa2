//! Options of a TCP store client, and the server that a master starts.

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

/// Shared servers of this process, by port.
/// The table does not keep the servers alive.
static SHARED: LazyLock<Mutex<HashMap<u16, Weak<TcpStoreServer>>>> = LazyLock::new(Mutex::default);

/// Options of [`TcpStore::connect`](crate::TcpStore::connect).
#[derive(Debug)]
pub struct TcpStoreOptions {
    /// Name or address of the server's host. An IPv6 address needs no brackets.
    pub host: String,
    /// Port of the server. For a master, 0 lets the system choose.
    pub port: u16,
    /// Number of clients in the job; `None` if unknown.
    pub world_size: Option<u32>,
    /// `true` to start the server in this process. The default is `false`.
    /// The server stops when the last store object in this process that belongs to it is dropped.
    pub is_master: bool,
    /// Timeout for the whole of `connect` and for later waits; default 300 s.
    pub timeout: Duration,
    /// `true` to retry until `timeout` if no server answers; default `true`.
    pub wait_for_server: bool,
    /// `true` to count the clients that have joined, if `world_size` is known.
    /// The master waits until all have joined. Default `true`.
    pub wait_for_workers: bool,
    /// `true` if masters in this process that use the same port share one server.
    /// Only servers that were started with this option are shared. The default is `false`.
    pub multi_tenant: bool,
    /// Maximum memory for one reply from the server; the default is 64 MiB.
    /// The connection can no longer be used after a longer reply.
    pub max_reply_bytes: usize,
    /// For a master: a bound socket. `port` must be its port, or 0.
    pub listener: Option<TcpListener>,
    /// For a master: the only address to listen on.
    /// `None` listens on all addresses of this host.
    pub bind: Option<String>,
    /// Credentials that this client presents, and requires from the server.
    /// The default is none.
    pub credentials: Credentials,
    /// For a master: clients that need no proof; default [`TorchClients::Job`].
    pub torch_clients: TorchClients,
    /// For a master: prefix of the keys that those clients cannot access.
    /// See [`Admission::agent_prefix`].
    pub agent_prefix: Option<Vec<u8>>,
    /// For a master: limits of the server.
    pub limits: Limits,
    /// For a master: `true` if an agent may host the store at this port.
    /// Corresponds to `TORCHELASTIC_USE_AGENT_STORE`. If this process cannot listen on the port,
    /// it then becomes a client of the agent's store. The default is `false`.
    pub agent_hosts: bool,
    /// For a master: handler for requests that are not store requests.
    /// A shared server keeps its own extension.
    pub extension: Option<Box<dyn Extension>>,
}

impl TcpStoreOptions {
    /// Creates options for a client of the server at `host` and `port`.
    /// The options have the defaults documented above and no world size.
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

    /// Starts the server, or finds the shared one; `None` if the agent hosts it.
    pub(super) fn host(&mut self) -> Result<Option<Arc<TcpStoreServer>>, StoreError> {
        // The lock is held while the server starts. If two masters start concurrently, one of them
        // starts the server and both share it.
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
                tracing::info!(
                    %error,
                    "the agent hosts the store; this process connects as its client"
                );
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
