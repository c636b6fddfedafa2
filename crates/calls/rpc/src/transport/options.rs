//! What transports a worker uses, and how.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use rdzv_rpc_proto::heartbeat;

use rdzv_trust::Identity;

/// What transports a worker uses, and how. All workers of a group should have the same.
#[derive(Debug, Clone)]
pub struct TransportOptions {
    /// Whether workers of one host use a Unix socket. Default: yes.
    pub unix: bool,
    /// Whether workers of one host exchange bytes in shared memory, once they have a Unix socket.
    /// Default: yes.
    pub shared: bool,
    /// How many bytes a ring in shared memory holds. Default: 256 KiB.
    pub ring: usize,
    /// Whether workers of one host read large parts of messages out of each other's memory, where the
    /// system allows that. Default: yes.
    pub read_memory: bool,
    /// Whether this worker connects to others over TCP, if there is no other way. Default: yes.
    pub tcp: bool,
    /// Where to listen for TCP. Default: 127.0.0.1.
    pub address: IpAddr,
    /// The TCP port to listen at. Default: 0, a free one.
    pub port: u16,
    /// The certificates for TLS over TCP; without, TCP is plain. Default: none.
    pub tls: Option<Arc<Identity>>,
    /// The users whose processes may connect over the Unix socket. Default: the user of this
    /// process.
    pub users: Option<Vec<u32>>,
    /// The time that a peer that has connected may take to say who it is; with TLS and Unix sockets, also for what
    /// comes before that. Default: 5 s.
    pub greeting: Duration,
    /// How long nothing may be heard of a host that is asked, by TCP, until the connection to it is
    /// broken, and how long connecting to it by TCP may take. A worker that is busy or stopped is still
    /// heard of: its system answers. At least 2 s. Default: 5 s.
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
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            tls: None,
            users: None,
            greeting: Duration::from_secs(5),
            heartbeat_limit: heartbeat::DEFAULT_LIMIT,
        }
    }
}
