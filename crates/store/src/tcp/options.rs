//! How a TCP store client is made.

use std::time::Duration;

use crate::deadline::DEFAULT_TIMEOUT;

/// What [`TcpStore::connect`](crate::TcpStore::connect) needs to know.
#[derive(Debug)]
pub struct TcpStoreOptions {
    /// Name or address of the server's host; an IPv6 address without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// How many clients the job has; `None` if that is not known.
    pub world_size: Option<u32>,
    /// Limit of connecting, all tries together, and of later waits. Default 300 s.
    pub timeout: Duration,
    /// Whether to take part in the count of clients that have joined, if `world_size` is known.
    /// Default true.
    pub wait_for_workers: bool,
}

impl TcpStoreOptions {
    /// A client of the server at `host` and `port`, with the defaults above and no world size.
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self {
            host: host.into(),
            port,
            world_size: None,
            timeout: DEFAULT_TIMEOUT,
            wait_for_workers: true,
        }
    }
}
