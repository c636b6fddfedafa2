//! The store behind a TCP connection.

use std::fmt;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_store_proto::client::{Expects, Operation};
use rdzv_store_proto::number;
use rdzv_store_proto::wire::LARGE_BODY;
use rdzv_store_proto::wire::reply::{Reply, Shape};
use rdzv_store_proto::wire::request;

use super::connect::connect;
use super::connected::{ADD, BARRIER, Connected, Ended, LEAST_PATIENCE, text};
use super::host::host;
use super::link::Link;
use super::options::TcpStoreOptions;
use super::server::TcpStoreServer;
use crate::deadline::{Deadline, SharedTimeout};
use crate::{Breaker, Store, StoreError};

/// The wire key that every client of a job adds 1 to when it joins. The only one without a slash.
const INIT_KEY: &[u8] = b"init/";

/// A client of a TCP store server: ours, or PyTorch's from 2.5 on.
///
/// One object is one connection, and a wait in one thread keeps other threads' calls on the same
/// object waiting; [`Store::try_clone`] makes another connection. `set`, `append`, `multi_set` and
/// `queue_push` have no answer on the wire, so a failure of theirs is reported by the next call.
/// After the connection has failed once, every call fails.
pub struct TcpStore {
    link: Mutex<Connected>,
    socket: Arc<TcpStream>,
    peer: SocketAddr,
    pub(super) endpoint: Endpoint,
    pub(super) timeout: SharedTimeout,
    /// Kept for as long as any store object that was made with it.
    pub(super) server: Option<Arc<TcpStoreServer>>,
}

/// How a barrier ended.
pub(super) enum Barrier {
    Passed,
    TimedOut { arrived: i64, elapsed: Duration },
}

impl fmt::Debug for TcpStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TcpStore({})", self.endpoint)
    }
}

impl TcpStore {
    /// Connects, within `options.timeout` in all.
    ///
    /// In order: a master starts the server; the connection is tried until the server answers; with
    /// a world size and `wait_for_workers`, this client counts itself in, and the master waits until
    /// all have done so.
    pub fn connect(mut options: TcpStoreOptions) -> Result<Self, StoreError> {
        let deadline = Deadline::after(options.timeout);
        if options.world_size == Some(0) {
            return Err(StoreError::Argument(
                "TCPStore world size cannot be 0".to_owned(),
            ));
        }
        let server = if options.is_master {
            host(&mut options)?
        } else {
            None
        };
        let endpoint = Endpoint {
            port: server.as_ref().map_or(options.port, |server| server.port()),
            host: options.host,
        };
        let link = connect(&endpoint, &deadline)?;
        let store = Self::over(link, endpoint, options.timeout, server);
        if let Some(world_size) = options.world_size
            && options.wait_for_workers
        {
            store.join(i64::from(world_size), &deadline)?;
        }
        Ok(store)
    }

    pub(super) fn over(
        link: Link,
        endpoint: Endpoint,
        timeout: Duration,
        server: Option<Arc<TcpStoreServer>>,
    ) -> Self {
        Self {
            socket: link.socket(),
            peer: link.peer(),
            link: Mutex::new(Connected::new(link)),
            endpoint,
            timeout: SharedTimeout::new(timeout),
            server,
        }
    }

    /// Counts this client in; the owner of the server waits for the others.
    ///
    /// The others add to the key, as PyTorch's clients do. The owner's server is one of ours, so the
    /// owner may enter a barrier under it, which ends when they have.
    fn join(&self, world_size: i64, deadline: &Deadline) -> Result<(), StoreError> {
        if self.server.is_none() {
            return self.add_raw(INIT_KEY, 1).map(drop);
        }
        let limit = deadline.remaining().unwrap_or(Duration::MAX);
        match self.enter_barrier(INIT_KEY, world_size, limit)? {
            Barrier::Passed => Ok(()),
            Barrier::TimedOut { arrived, .. } => Err(StoreError::Join {
                joined: arrived,
                expected: world_size,
                elapsed: deadline.elapsed(),
            }),
        }
    }

    /// Counts the caller under a key and waits until `world_size` have been.
    pub(super) fn enter_barrier(
        &self,
        wire_key: &[u8],
        world_size: i64,
        limit: Duration,
    ) -> Result<Barrier, StoreError> {
        let mut request = Vec::new();
        request::barrier(&mut request, wire_key, world_size);
        let sent = Operation {
            request,
            expects: Expects::Release { limit, then: None },
        };
        let mut connected = self.lock();
        let elapsed = match connected.perform(BARRIER, wire_key, sent, &[], self.patience())? {
            Ended::Answered(_) => return Ok(Barrier::Passed),
            Ended::TimedOut(elapsed) => elapsed,
        };
        // The key is there: we were counted under it.
        let mut request = Vec::new();
        request::get(&mut request, wire_key);
        let counted = match connected.ask("get", wire_key, request, Shape::Bytes, LEAST_PATIENCE)? {
            Reply::Bytes(value) => number::parse(&value),
            _ => None,
        };
        Ok(Barrier::TimedOut {
            arrived: counted.unwrap_or(0),
            elapsed,
        })
    }

    /// The server, if this process hosts it.
    pub fn server(&self) -> Option<&Arc<TcpStoreServer>> {
        self.server.as_ref()
    }

    /// The host as it was asked for.
    pub fn host(&self) -> &str {
        &self.endpoint.host
    }

    /// The numeric address of the server.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The address of this host that the connection comes from.
    pub fn local_address(&self) -> Option<IpAddr> {
        Some(self.socket.local_addr().ok()?.ip())
    }

    /// What ends the connection from any thread.
    pub(super) fn breaker_of_socket(&self) -> Breaker {
        let socket = Arc::clone(&self.socket);
        Arc::new(move || {
            // It fails only if the connection is gone already.
            let _ = socket.shutdown(Shutdown::Both);
        })
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Connected> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patience(&self) -> Duration {
        self.timeout().max(LEAST_PATIENCE)
    }

    /// One request with an answer that is due at once.
    pub(super) fn ask(
        &self,
        operation: &'static str,
        key: &[u8],
        request: Vec<u8>,
        shape: Shape,
    ) -> Result<Reply, StoreError> {
        let mut connected = self.lock();
        connected.ask(operation, key, request, shape, self.patience())
    }

    /// One request without an answer; `value` follows it.
    pub(super) fn tell(
        &self,
        operation: &'static str,
        key: &[u8],
        mut request: Vec<u8>,
        value: &[u8],
    ) -> Result<(), StoreError> {
        let mut payload = value;
        if value.len() < LARGE_BODY {
            request.extend_from_slice(std::mem::take(&mut payload));
        }
        let sent = Operation {
            request,
            expects: Expects::Nothing,
        };
        let mut connected = self.lock();
        connected.suspect(operation, key, value.len());
        let patience = self.patience();
        connected.perform(operation, key, sent, payload, patience)?;
        Ok(())
    }

    /// Waits for keys, then asks for something.
    pub(super) fn wait_then(
        &self,
        operation: &'static str,
        keys: &[&str],
        limit: Duration,
        then: Option<(Vec<u8>, Shape)>,
    ) -> Result<Option<Reply>, StoreError> {
        let wire_keys: Vec<Vec<u8>> = keys.iter().map(|key| wire_key(key)).collect();
        let mut request = Vec::new();
        request::wait(&mut request, &wire_keys);
        let sent = Operation {
            request,
            expects: Expects::Release { limit, then },
        };
        let shown = wire_keys.first().map_or(&b""[..], |key| key);
        let mut connected = self.lock();
        match connected.perform(operation, shown, sent, &[], self.patience())? {
            Ended::Answered(reply) => Ok(reply),
            Ended::TimedOut(elapsed) => Err(StoreError::WaitTimeout {
                store: connected.peer().to_string(),
                missing: connected.missing(&wire_keys),
                keys: wire_keys.iter().map(|key| text(key)).collect(),
                elapsed,
            }),
        }
    }

    pub(super) fn add_raw(&self, wire_key: &[u8], delta: i64) -> Result<i64, StoreError> {
        let mut request = Vec::new();
        request::add(&mut request, wire_key, delta);
        self.lock()
            .ask_number(ADD, wire_key, request, self.patience())
    }

    pub(super) fn count(
        &self,
        operation: &'static str,
        key: &[u8],
        request: Vec<u8>,
    ) -> Result<u64, StoreError> {
        let mut connected = self.lock();
        let number = connected.ask_number(operation, key, request, self.patience())?;
        u64::try_from(number).map_err(|_| connected.corrupt(format!("a count of {number}")))
    }
}

/// The name of an API key on the wire.
pub(super) fn wire_key(key: &str) -> Vec<u8> {
    [b"/", key.as_bytes()].concat()
}
