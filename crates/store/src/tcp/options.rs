//! How a TCP store client is made.

use std::net::TcpListener;
use std::time::Duration;

use rdzv_store_proto::limits::Limits;

use crate::deadline::DEFAULT_TIMEOUT;

/// What [`TcpStore::connect`](crate::TcpStore::connect) needs to know.
#[derive(Debug)]
pub struct TcpStoreOptions {
    /// Name or address of the server's host; an IPv6 address without brackets.
    pub host: String,
    /// Its port. A master may give 0: the system chooses.
    pub port: u16,
    /// How many clients the job has; `None` if that is not known.
    pub world_size: Option<u32>,
    /// Whether to start the server, in this process. It ends when the last store object of this
    /// process that belongs to it is dropped. Default false.
    pub is_master: bool,
    /// Limit of everything that `connect` does, and of later waits. Default 300 s.
    pub timeout: Duration,
    /// Whether to take part in the count of clients that have joined, if `world_size` is known;
    /// the master waits until all have. Default true.
    pub wait_for_workers: bool,
    /// Whether masters of this process that give the same port share one server. Only servers
    /// that were started with this are shared. Default false.
    pub multi_tenant: bool,
    /// Master: a socket that is bound already. `port` must be its port, or 0.
    pub listener: Option<TcpListener>,
    /// Master: the only address to listen on; `None` is every address of this host.
    pub bind: Option<String>,
    /// Master: the bounds of the server.
    pub limits: Limits,
    /// Master: an agent may be hosting the store at this port for all workers
    /// (`TORCHELASTIC_USE_AGENT_STORE`), so if the port is taken, go on as a client. Default false.
    pub agent_hosts: bool,
}

impl TcpStoreOptions {
    /// A client of the server at `host` and `port`, with the defaults above and no world size.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            world_size: None,
            is_master: false,
            timeout: DEFAULT_TIMEOUT,
            wait_for_workers: true,
            multi_tenant: false,
            listener: None,
            bind: None,
            limits: Limits::default(),
            agent_hosts: false,
        }
    }
}
