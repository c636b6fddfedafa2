//! Options of the transports.

use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc_proto::heartbeat;

use rdzv_trust::Identity;

/// Options of the transports; use the same options on all workers of a group.
#[derive(Debug, Clone)]
pub struct TransportOptions {
    /// `true` if workers of one host use a Unix socket (default: `true`).
    pub unix: bool,
    /// `true` if workers of one host use shared memory (default: `true`).
    ///
    /// The workers first connect over a Unix socket.
    pub shared: bool,
    /// Size of a ring in shared memory, in bytes (default: 256 KiB).
    pub ring: usize,
    /// `true` if workers of one host read large parts from each other's memory.
    ///
    /// The default is `true`. The operating system must allow it.
    pub read_memory: bool,
    /// `true` if this worker may use TCP as the last choice (default: `true`).
    pub tcp: bool,
    /// Listening port for TCP (default: 0, a free port).
    pub port: u16,
    /// Certificates for TLS over TCP (default: none, with plain TCP).
    pub tls: Option<Arc<Identity>>,
    /// Ids of the users whose processes may communicate over the Unix socket.
    ///
    /// The default is the user of this process.
    pub users: Option<Vec<u32>>,
    /// Time within which a connected peer must identify itself (default: 5 s).
    ///
    /// With TLS and Unix sockets, the same limit applies separately to the steps before that.
    pub greeting: Duration,
    /// Silence on TCP after which the host of a peer counts as lost.
    ///
    /// This is also the time limit for connecting by TCP. A worker that is busy or stopped is not
    /// silent: its operating system answers. The default is 5 s, the minimum 2 s.
    pub heartbeat_limit: Duration,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self {
            unix: true,
            shared: true,
            ring: rdzv_shm::pair::CAPACITY,
            read_memory: true,
            tcp: true,
            port: 0,
            tls: None,
            users: None,
            greeting: Duration::from_secs(5),
            heartbeat_limit: heartbeat::DEFAULT_LIMIT,
        }
    }
}
