//! Store client over a TCP connection.
//!
//! | call | on the wire |
//! |---|---|
//! | set, append, queue_push, multi_set | one request, no reply |
//! | get from an rdzv server | one request; if the key is absent, a wait, then a second request |
//! | get from another server, multi_get, blocking queue_pop | a wait for the keys, then the request |
//! | wait, barrier | one request, one byte when the wait is over; cancelled on a timeout |
//! | all others | one request, one reply |

use std::any::Any;
use std::fmt;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::endpoint::{Endpoint, bare_host};
use rdzv_core::reminder::{self, Reminder};
use rdzv_lock::{LimitedGuard, LimitedMutex};
use rdzv_store_proto::client::{Expects, StoreOperation, Then};
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::number;
use rdzv_store_proto::wire::LARGE_BODY;
use rdzv_store_proto::wire::reply::{CheckReply, Reply, Shape};
use rdzv_store_proto::wire::request;
use rdzv_trust::Credentials;

use super::connect::connect;
use super::connected::{
    ADD, BARRIER, Connected, Ended, LEAST_REPLY_TIMEOUT, MEASURE, POP, PUSH, text, written,
};
use super::options::TcpStoreOptions;
use super::server::TcpStoreServer;
use crate::deadline::{Deadline, SharedTimeout};
use crate::error::shown;
use crate::{Breaker, Store, StoreConnection, StoreError, address_for_others, interrupt};

/// Key that counts the clients that have joined a job.
/// This is the only key on the wire without a leading slash.
const INIT_KEY: &[u8] = b"init/";

/// Client of a TCP store server: rdzv's own, or PyTorch's since version 2.5.
///
/// Each object uses one connection. While one thread waits, calls from other threads on the same
/// object block. [`Store::try_clone`] opens another connection. The server does not answer `set`,
/// `append`, `multi_set` and `queue_push`, so the next call reports their failure. Once the
/// connection has failed, every call fails.
pub struct TcpStore {
    pub(super) link: LimitedMutex<Connected>,
    pub(super) socket: Arc<TcpStream>,
    /// `true` if the server supports the requests that only rdzv servers have.
    is_native: bool,
    peer: SocketAddr,
    timeout: SharedTimeout,
    origin: Origin,
}

/// Part of a client that its clones share.
#[derive(Clone)]
struct Origin {
    /// Host as specified by the caller, and port of the server.
    endpoint: Endpoint,
    max_reply_bytes: usize,
    credentials: Credentials,
    /// Server, kept alive while any store object that was created from it exists.
    server: Option<Arc<TcpStoreServer>>,
    /// Value passed to [`TcpStore::holding`], kept alive in the same way.
    held: Option<Arc<dyn Any + Send + Sync>>,
}

impl fmt::Debug for TcpStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TcpStore({})", self.origin.endpoint)
    }
}

impl TcpStore {
    /// Connects to the store within `options.timeout`.
    ///
    /// A master first starts or finds the server. The client then retries until the server answers,
    /// unless `wait_for_server` is `false`. If the world size is known and `wait_for_workers` is
    /// set, the client adds itself to the count of clients. A master whose process hosts the server
    /// then waits until all clients have joined.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the server cannot be started, no store answers, or the peer is not a store
    /// or refuses this client. Also if the world size is 0, or clients are missing when the timeout
    /// has passed.
    pub fn connect(mut options: TcpStoreOptions) -> Result<Self, StoreError> {
        let deadline = Deadline::after(options.timeout);
        if options.world_size == Some(0) {
            return Err(StoreError::Argument(
                "TCPStore world size cannot be 0".to_owned(),
            ));
        }
        let server = if options.is_master {
            options.host()?
        } else {
            None
        };
        let endpoint = Endpoint {
            port: server.as_ref().map_or(options.port, |server| server.port()),
            host: bare_host(&options.host).to_owned(),
        };
        let origin = Origin {
            endpoint: endpoint.clone(),
            max_reply_bytes: options.max_reply_bytes,
            credentials: options.credentials,
            server,
            held: None,
        };
        let (timeout, wait) = (options.timeout, options.wait_for_server);
        let store = Self::reach(&endpoint, origin, &deadline, timeout, wait)?;
        if let Some(world_size) = options.world_size
            && options.wait_for_workers
        {
            store.join(i64::from(world_size), &deadline)?;
        }
        Ok(store)
    }

    /// Connects to the server at `endpoint`.
    /// The endpoint that the caller specified may differ.
    fn reach(
        endpoint: &Endpoint,
        origin: Origin,
        deadline: &Deadline,
        timeout: Duration,
        wait: bool,
    ) -> Result<Self, StoreError> {
        let (reply_bytes, credentials) = (origin.max_reply_bytes, &origin.credentials);
        let found = connect(endpoint, deadline, wait, reply_bytes, credentials);
        let (link, is_native) = found?;
        Ok(Self {
            socket: link.socket(),
            is_native,
            peer: link.peer(),
            link: LimitedMutex::new(Connected::new(link)),
            timeout: SharedTimeout::new(timeout),
            origin,
        })
    }

    /// Keeps `held` alive while any store object created from this one exists.
    /// `held` is something that the server needs. An example is the rendezvous from which the
    /// workers learned the server's address.
    #[must_use]
    pub fn holding(mut self, held: Arc<dyn Any + Send + Sync>) -> Self {
        self.origin.held = Some(held);
        self
    }

    /// Adds this client to the count. The server's owner waits for the others.
    ///
    /// The other clients increment the key, as PyTorch's clients do. The owner's server is an rdzv
    /// server, so the owner can enter a barrier on that key. The barrier completes when all clients
    /// have joined.
    fn join(&self, world_size: i64, deadline: &Deadline) -> Result<(), StoreError> {
        if self.origin.server.is_none() {
            return self.add_raw(INIT_KEY, 1).map(drop);
        }
        let (began, mut reminder) = (Instant::now(), Reminder::default());
        loop {
            let left = deadline.remaining().unwrap_or(Duration::MAX);
            let next = reminder.next().saturating_sub(began.elapsed());
            let joined = match self.enter_barrier(INIT_KEY, world_size, left.min(next))? {
                Some((arrived, _)) if arrived < world_size => arrived,
                _ => return Ok(()),
            };
            if left <= next {
                return Err(StoreError::Join {
                    joined,
                    expected: world_size,
                    elapsed: deadline.elapsed(),
                });
            }
            if reminder.is_due(began.elapsed()) {
                let left = deadline.remaining();
                tracing::warn!(
                    target: reminder::TARGET,
                    left = left.map(|left| left.as_secs()),
                    "waiting for nodes: {joined} of {world_size} joined at {}; start the same \
                     command on the other nodes, each with a different rank",
                    self.origin.endpoint,
                );
            }
            // The next entry into the barrier counts this client again.
            self.add_raw(INIT_KEY, -1)?;
        }
    }

    /// Counts the caller under a key and waits for `world_size` callers.
    /// On a timeout, returns the number of callers that had arrived, and the duration of the wait.
    fn enter_barrier(
        &self,
        wire_key: &[u8],
        world_size: i64,
        limit: Duration,
    ) -> Result<Option<(i64, Duration)>, StoreError> {
        let sent = StoreOperation {
            request: written(|out| request::barrier(out, wire_key, world_size)),
            expects: Expects::Release { limit, then: None },
        };
        let mut connected = self.lock(BARRIER, wire_key)?;
        let reply_timeout = self.reply_timeout();
        let elapsed = match connected.perform(BARRIER, wire_key, sent, &[], reply_timeout) {
            Ok(Ended::Answered(_)) => return Ok(None),
            Ok(Ended::TimedOut(elapsed)) => elapsed,
            Err(error) => {
                drop(connected);
                // A connection that has ended cannot report that this client has stopped waiting.
                if matches!(error, StoreError::Interrupted { .. }) {
                    let _ = self.add_raw(wire_key, -1);
                }
                return Err(error);
            }
        };
        // The key exists, because this client was counted under it.
        let get = |out: &mut Vec<u8>| request::get(out, wire_key);
        let counted =
            match connected.ask("get", wire_key, get, Shape::Bytes, LEAST_REPLY_TIMEOUT)? {
                Reply::Bytes(value) => number::parse(&value),
                _ => None,
            };
        Ok(Some((counted.unwrap_or(0), elapsed)))
    }

    /// Connects a second client to the same server, as [`Store::try_clone`] does.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`TcpStore::connect`].
    pub fn reconnected(&self) -> Result<Self, StoreError> {
        let address = self.peer();
        let numeric = Endpoint {
            host: address.ip().to_string(),
            port: address.port(),
        };
        let timeout = self.timeout();
        let deadline = Deadline::after(timeout);
        Self::reach(&numeric, self.origin.clone(), &deadline, timeout, true)
    }

    /// Returns the server if this client is its master, or a clone of a master.
    pub fn server(&self) -> Option<&Arc<TcpStoreServer>> {
        self.origin.server.as_ref()
    }

    /// Returns the host as the caller specified it.
    pub fn host(&self) -> &str {
        &self.origin.endpoint.host
    }

    /// Returns the numeric address of the server.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the local address of the connection.
    pub fn local_address(&self) -> Option<IpAddr> {
        Some(self.socket.local_addr().ok()?.ip())
    }

    /// Returns the port of the server.
    pub fn port(&self) -> u16 {
        self.origin.endpoint.port
    }

    pub(super) fn reply_timeout(&self) -> Duration {
        self.timeout().max(LEAST_REPLY_TIMEOUT)
    }

    /// Locks the connection, which another thread may hold while it waits.
    fn lock(
        &self,
        operation: &'static str,
        key: &[u8],
    ) -> Result<LimitedGuard<'_, Connected>, StoreError> {
        match self.link.try_lock() {
            Some(connected) => Ok(connected),
            None => interrupt::lock(&self.link, operation, &text(key)),
        }
    }

    /// Sends a request and returns the immediate answer.
    fn ask(
        &self,
        operation: &'static str,
        key: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
        shape: Shape,
    ) -> Result<Reply, StoreError> {
        let mut connected = self.lock(operation, key)?;
        connected.ask(operation, key, write, shape, self.reply_timeout())
    }

    /// Sends a request that has no answer, followed by `value`.
    fn send(
        &self,
        operation: &'static str,
        key: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
        value: &[u8],
    ) -> Result<(), StoreError> {
        check_value(key, value)?;
        let (mut request, mut payload) = (written(write), value);
        if value.len() < LARGE_BODY {
            request.extend_from_slice(std::mem::take(&mut payload));
        }
        let sent = StoreOperation {
            request,
            expects: Expects::Nothing,
        };
        let mut connected = self.lock(operation, key)?;
        let reply_timeout = self.reply_timeout();
        connected.perform(operation, key, sent, payload, reply_timeout)?;
        Ok(())
    }

    /// Waits for keys, then sends the request `then`.
    fn wait_then(
        &self,
        operation: &'static str,
        keys: &[&str],
        limit: Duration,
        then: Option<Then>,
    ) -> Result<Option<Reply>, StoreError> {
        let wire_keys = wire_keys(keys)?;
        let request = |out: &mut Vec<u8>| match (&then, &wire_keys[..]) {
            (Some(Then { at_once: true, .. }), [key]) => request::get_when_there(out, key),
            _ => request::wait(out, &wire_keys),
        };
        let sent = StoreOperation {
            request: written(request),
            expects: Expects::Release { limit, then },
        };
        let shown = wire_keys.first().map_or(&b""[..], |key| key);
        let mut connected = self.lock(operation, shown)?;
        match connected.perform(operation, shown, sent, &[], self.reply_timeout())? {
            Ended::Answered(reply) => Ok(reply),
            Ended::TimedOut(elapsed) => Err(connected.timed_out(&wire_keys, elapsed)),
        }
    }

    fn add_raw(&self, wire_key: &[u8], delta: i64) -> Result<i64, StoreError> {
        let add = |out: &mut Vec<u8>| request::add(out, wire_key, delta);
        self.lock(ADD, wire_key)?
            .ask_number(ADD, wire_key, add, self.reply_timeout())
    }

    fn count(
        &self,
        operation: &'static str,
        key: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Result<u64, StoreError> {
        let mut connected = self.lock(operation, key)?;
        let number = connected.ask_number(operation, key, write, self.reply_timeout())?;
        u64::try_from(number)
            .map_err(|_| connected.corrupt(format!("it sent an invalid count: {number}")))
    }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let key = wire_key(key)?;
        let head = |out: &mut Vec<u8>| request::set_head(out, &key, value.len());
        self.send("set", &key, head, value)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.get_within(key, None)
    }

    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        let name = wire_key(key)?;
        let then = Some(Then {
            request: written(|out| request::get(out, &name)),
            shape: Shape::Bytes,
            at_once: self.is_native,
        });
        let limit = timeout.unwrap_or_else(|| self.timeout());
        match self.wait_then("get", &[key], limit, then)? {
            Some(Reply::Bytes(value)) => Ok(value),
            other => Err(self
                .link
                .lock()
                .corrupt(format!("it sent {other:?} instead of a value"))),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.add_raw(&wire_key(key)?, delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        const NAME: &str = "compare and set";
        let key = wire_key(key)?;
        check_value(&key, expected)?;
        check_value(&key, desired)?;
        let write = |out: &mut Vec<u8>| request::compare_set(out, &key, expected, desired);
        match self.ask(NAME, &key, write, Shape::Bytes)? {
            Reply::Bytes(value) => Ok(value),
            other => Err(self
                .link
                .lock()
                .corrupt(format!("it sent {other:?} instead of a value"))),
        }
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let keys = wire_keys(keys)?;
        let shown = keys.first().map_or(&b""[..], |key| key);
        let check = |out: &mut Vec<u8>| request::check(out, &keys);
        match self.ask("check", shown, check, Shape::Byte)? {
            Reply::Byte(byte) => match CheckReply::from_byte(byte) {
                Ok(reply) => Ok(reply == CheckReply::Ready),
                Err(error) => Err(self.link.lock().corrupt(error.to_string())),
            },
            other => Err(self.link.lock().corrupt(format!(
                "it sent {other:?} instead of the result of a check"
            ))),
        }
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        self.wait_then("wait for", keys, limit, None)?;
        Ok(())
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let key = wire_key(key)?;
        let deleted = self.count("delete", &key, |out| request::delete_key(out, &key));
        Ok(deleted? > 0)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.count("count the keys", b"", request::get_num_keys)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let names = match self.ask("list the keys", b"", request::list_keys, Shape::List)? {
            Reply::List(names) => names,
            other => {
                return Err(self
                    .link
                    .lock()
                    .corrupt(format!("it sent {other:?} instead of a list")));
            }
        };
        names
            .iter()
            .filter_map(|name| name.strip_prefix(b"/"))
            .map(|key| match str::from_utf8(key) {
                Ok(key) => Ok(key.to_owned()),
                Err(_) => Err(self
                    .link
                    .lock()
                    .corrupt(format!("it contains a key that is not UTF-8: {key:?}"))),
            })
            .collect()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let key = wire_key(key)?;
        let head = |out: &mut Vec<u8>| request::append_head(out, &key, value.len());
        self.send("append to", &key, head, value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        let wire_keys = wire_keys(keys)?;
        let then = Some(Then {
            request: written(|out| request::multi_get(out, &wire_keys)),
            shape: Shape::Values(keys.len()),
            at_once: false,
        });
        match self.wait_then("get", keys, self.timeout(), then)? {
            Some(Reply::Values(values)) => Ok(values),
            other => Err(self
                .link
                .lock()
                .corrupt(format!("it sent {other:?} instead of values"))),
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let keys: Vec<&str> = pairs.iter().map(|(key, _)| *key).collect();
        let values = pairs.iter().map(|(_, value)| *value);
        let pairs: Vec<(Vec<u8>, &[u8])> = wire_keys(&keys)?.into_iter().zip(values).collect();
        for (key, value) in &pairs {
            check_value(key, value)?;
        }
        let shown = pairs.first().map_or(&b""[..], |(key, _)| key);
        self.send("set", shown, |out| request::multi_set(out, &pairs), b"")
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let key = wire_key(key)?;
        let head = |out: &mut Vec<u8>| request::queue_push_head(out, &key, value.len());
        self.send(PUSH, &key, head, value)
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        let name = wire_key(key)?;
        let pop = |out: &mut Vec<u8>| request::queue_pop(out, &name);
        let deadline = Deadline::after(self.timeout());
        loop {
            let popped = if block {
                let limit = deadline.remaining().unwrap_or(Duration::MAX);
                let then = Some(Then {
                    request: written(pop),
                    shape: Shape::Pop,
                    at_once: false,
                });
                self.wait_then(POP, &[key], limit, then)?
            } else {
                Some(self.ask(POP, &name, pop, Shape::Pop)?)
            };
            match popped {
                Some(Reply::Pop(Some(value))) => return Ok(value),
                // Several clients were woken, and another client was faster. PyTorch reports an
                // empty queue in this case, although the caller asked it to wait.
                Some(Reply::Pop(None)) if block && !deadline.has_passed() => {}
                Some(Reply::Pop(None)) => {
                    return Err(StoreError::QueueEmpty {
                        key: key.to_owned(),
                    });
                }
                other => {
                    return Err(self
                        .link
                        .lock()
                        .corrupt(format!("it sent {other:?} instead of a value")));
                }
            }
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let key = wire_key(key)?;
        self.count(MEASURE, &key, |out| request::queue_len(out, &key))
    }

    /// Sends one request; the server itself counts the callers under the key.
    fn barrier(
        &self,
        key: &str,
        world_size: u32,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        let (name, world_size) = (wire_key(key)?, i64::from(world_size));
        let Some((seen, elapsed)) = self.enter_barrier(&name, world_size, limit)? else {
            return Ok(());
        };
        // The last member may have come at the same time.
        if seen >= world_size {
            return Ok(());
        }
        let arrived = self.add_raw(&name, -1)? + 1;
        if arrived >= world_size {
            self.add_raw(&name, 1)?;
            return Ok(());
        }
        Err(StoreError::BarrierTimeout {
            store: self.link.lock().peer().to_string(),
            key: key.to_owned(),
            arrived,
            world_size,
            elapsed,
        })
    }

    fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    fn connection(&self) -> Option<&dyn StoreConnection> {
        Some(self)
    }

    /// Opens a second connection to the address that the first one resolved.
    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(self.reconnected()?))
    }
}

impl StoreConnection for TcpStore {
    fn breaker(&self) -> Option<Breaker> {
        let socket = Arc::clone(&self.socket);
        Some(Arc::new(move || {
            // The call fails only if the connection has ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }))
    }

    fn address_of_this_host(&self) -> Option<IpAddr> {
        address_for_others(self.host(), self.local_address()?)
    }
}

/// Returns the name of an API key on the wire.
///
/// A server closes the connection of a client that exceeds its limits. The client therefore checks
/// PyTorch's limits before it sends a request.
pub(super) fn wire_key(key: &str) -> Result<Vec<u8>, StoreError> {
    let most = Limits::default().max_key_bytes - 1;
    if key.len() > most {
        let text = format!("a key has at most {most} bytes; this one is {}", shown(key));
        return Err(StoreError::Argument(text));
    }
    Ok([b"/", key.as_bytes()].concat())
}

/// Returns the names of several API keys on the wire.
pub(super) fn wire_keys(keys: &[&str]) -> Result<Vec<Vec<u8>>, StoreError> {
    let most = Limits::default().max_keys_per_request;
    if keys.len() > most {
        let text = format!("a call has at most {most} keys, not {}", keys.len());
        return Err(StoreError::Argument(text));
    }
    keys.iter().map(|key| wire_key(key)).collect()
}

/// Refuses a value that a server with PyTorch's limits would refuse.
fn check_value(key: &[u8], value: &[u8]) -> Result<(), StoreError> {
    let most = Limits::default().max_value_bytes;
    if value.len() <= most {
        return Ok(());
    }
    Err(StoreError::Argument(format!(
        "the value for key {} has {} bytes, but a request can have at most {most}; divide it among \
         several keys",
        shown(&text(key)),
        value.len()
    )))
}
