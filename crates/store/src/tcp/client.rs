//! The store behind a TCP connection.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::store::client::{Expects, Failure, Operation};
use rdzv_core::store::limits::Limits;
use rdzv_core::store::number;
use rdzv_core::store::wire::LARGE_BODY;
use rdzv_core::store::wire::reply::{CheckReply, Reply, Shape};
use rdzv_core::store::wire::request;

use super::connect::connect;
use super::host::host;
use super::link::{Broken, Link};
use super::options::TcpStoreOptions;
use super::server::TcpStoreServer;
use crate::deadline::{Deadline, SharedTimeout};
use crate::{Store, StoreError};

/// The wire key that every client of a job adds 1 to when it joins. The only one without a slash.
const INIT_KEY: &[u8] = b"init/";

/// Least time that a server gets for an answer that is due at once, however short the timeout.
const LEAST_PATIENCE: Duration = Duration::from_secs(10);

/// Between two looks of the master at how many have joined.
const JOIN_PAUSE: Duration = Duration::from_millis(10);

/// After a wait for several keys has timed out: how many are looked at one by one for the error.
const MOST_EXAMINED: usize = 64;

/// A client of a TCP store server: ours, or PyTorch's from 2.5 on.
///
/// One object is one connection, and a wait in one thread keeps other threads' calls on the same
/// object waiting; [`Store::try_clone`] makes another connection. `set`, `append`, `multi_set` and
/// `queue_push` have no answer on the wire, so a failure of theirs is reported by the next call.
/// After the connection has failed once, every call fails.
pub struct TcpStore {
    link: Mutex<Connected>,
    endpoint: Endpoint,
    timeout: SharedTimeout,
    /// Kept for as long as any store object that was made with it.
    server: Option<Arc<TcpStoreServer>>,
}

#[derive(Debug)]
struct Connected {
    link: Link,
    /// An earlier request that the server may have refused by closing the connection.
    suspicion: Option<String>,
    /// The error that ended the use of the connection.
    death: Option<String>,
}

/// The operations that a server may have reasons to refuse, as they are called in errors.
const ADD: &str = "add to";
const BARRIER: &str = "pass the barrier with";
const PUSH: &str = "push to the queue";
const POP: &str = "pop from the queue";
const MEASURE: &str = "measure the queue";

/// How an operation on the wire ended, errors aside.
enum Ended {
    Answered(Option<Reply>),
    TimedOut(Duration),
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

    fn over(
        link: Link,
        endpoint: Endpoint,
        timeout: Duration,
        server: Option<Arc<TcpStoreServer>>,
    ) -> Self {
        Self {
            link: Mutex::new(Connected {
                link,
                suspicion: None,
                death: None,
            }),
            endpoint,
            timeout: SharedTimeout::new(timeout),
            server,
        }
    }

    /// Counts this client in; the owner of the server waits for the others.
    fn join(&self, world_size: i64, deadline: &Deadline) -> Result<(), StoreError> {
        let mut joined = self.add_raw(INIT_KEY, 1)?;
        while self.server.is_some() && joined < world_size {
            if deadline.has_passed() {
                return Err(StoreError::Join {
                    joined,
                    expected: world_size,
                    elapsed: deadline.elapsed(),
                });
            }
            let pause = deadline
                .remaining()
                .map_or(JOIN_PAUSE, |left| left.min(JOIN_PAUSE));
            thread::sleep(pause);
            joined = self.add_raw(INIT_KEY, 0)?;
        }
        Ok(())
    }

    /// The server, if this process hosts it.
    pub fn server(&self) -> Option<&Arc<TcpStoreServer>> {
        self.server.as_ref()
    }

    /// The host as it was asked for.
    pub fn host(&self) -> &str {
        &self.endpoint.host
    }

    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.endpoint.port
    }

    fn lock(&self) -> MutexGuard<'_, Connected> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn patience(&self) -> Duration {
        self.timeout().max(LEAST_PATIENCE)
    }

    /// One request with an answer that is due at once.
    fn ask(
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
    fn tell(
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
    fn wait_then(
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
                store: connected.link.peer().to_string(),
                missing: connected.missing(&wire_keys),
                keys: wire_keys.iter().map(|key| text(key)).collect(),
                elapsed,
            }),
        }
    }

    fn add_raw(&self, wire_key: &[u8], delta: i64) -> Result<i64, StoreError> {
        let mut request = Vec::new();
        request::add(&mut request, wire_key, delta);
        self.lock()
            .ask_number(ADD, wire_key, request, self.patience())
    }

    fn count(
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

impl Connected {
    fn perform(
        &mut self,
        operation: &'static str,
        key: &[u8],
        sent: Operation,
        payload: &[u8],
        patience: Duration,
    ) -> Result<Ended, StoreError> {
        let started = Instant::now();
        let Broken { failure, source } = match self.link.perform(sent, payload, patience) {
            Ok(reply) => return Ok(Ended::Answered(reply)),
            Err(broken) => broken,
        };
        let (peer, key, elapsed) = (self.link.peer().to_string(), text(key), started.elapsed());
        let error = match failure {
            Failure::TimedOut => return Ok(Ended::TimedOut(elapsed)),
            Failure::NoAnswer => StoreError::NoAnswer {
                peer,
                operation,
                key,
                elapsed,
            },
            Failure::NoStore(error) => self.corrupt(format!("{operation} key {key}: {error}")),
            Failure::Closed => StoreError::Disconnected {
                peer,
                operation,
                key,
                elapsed,
                cause: self.probable_cause(operation),
                source,
            },
        };
        self.death.get_or_insert_with(|| error.to_string());
        Err(error)
    }

    fn ask(
        &mut self,
        operation: &'static str,
        key: &[u8],
        request: Vec<u8>,
        shape: Shape,
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        self.suspect(operation, key, 0);
        let sent = Operation {
            request,
            expects: Expects::Reply(shape),
        };
        match self.perform(operation, key, sent, &[], patience)? {
            Ended::Answered(Some(reply)) => Ok(reply),
            Ended::Answered(None) | Ended::TimedOut(_) => {
                Err(self.corrupt(format!("no reply to {operation}")))
            }
        }
    }

    fn ask_number(
        &mut self,
        operation: &'static str,
        key: &[u8],
        request: Vec<u8>,
        patience: Duration,
    ) -> Result<i64, StoreError> {
        match self.ask(operation, key, request, Shape::Number, patience)? {
            Reply::Number(number) => Ok(number),
            other => Err(self.corrupt(format!("{other:?} as the reply to {operation}"))),
        }
    }

    /// Which of the keys are not there now. Only for the text of an error, so a failure to find out
    /// counts as missing.
    fn missing(&mut self, keys: &[Vec<u8>]) -> Vec<String> {
        let [_, _, ..] = keys else {
            return keys.iter().map(|key| text(key)).collect();
        };
        let mut missing = Vec::new();
        for key in keys.iter().take(MOST_EXAMINED) {
            let mut request = Vec::new();
            request::check(&mut request, &[key]);
            let there = match self.ask("check", key, request, Shape::Byte, LEAST_PATIENCE) {
                Ok(Reply::Byte(byte)) => byte == CheckReply::Ready as u8,
                _ => false,
            };
            if !there {
                missing.push(text(key));
            }
            if !self.link.is_alive() {
                break;
            }
        }
        missing
    }

    /// Remembers a request that is over the limits of the reference's server, which answers it by
    /// closing the connection.
    fn suspect(&mut self, operation: &'static str, key: &[u8], value_length: usize) {
        let limits = Limits::default();
        if key.len() > limits.max_key_bytes || value_length > limits.max_value_bytes {
            self.suspicion.get_or_insert_with(|| {
                format!(
                    "it has probably refused the request to {operation} a key of {} bytes with a value \
                     of {value_length} bytes (a server usually takes {} and {})",
                    key.len(),
                    limits.max_key_bytes,
                    limits.max_value_bytes
                )
            });
        }
    }

    fn probable_cause(&self, operation: &'static str) -> String {
        if let Some(first) = self.death.as_ref().or(self.suspicion.as_ref()) {
            return first.clone();
        }
        let cause = match operation {
            ADD | BARRIER => "its process has ended, or the value of the key is not a number",
            PUSH | POP | MEASURE => {
                "its process has ended, or it is PyTorch's older server, which has no queues"
            }
            _ => "its process has probably ended",
        };
        cause.to_owned()
    }

    fn corrupt(&self, what: String) -> StoreError {
        StoreError::Corrupt {
            store: self.link.peer().to_string(),
            what,
        }
    }
}

impl Store for TcpStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let (key, mut request) = (wire_key(key), Vec::new());
        request::set_head(&mut request, &key, value.len());
        self.tell("set", &key, request, value)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let mut request = Vec::new();
        request::get(&mut request, &wire_key(key));
        let then = Some((request, Shape::Bytes));
        match self.wait_then("get", &[key], self.timeout(), then)? {
            Some(Reply::Bytes(value)) => Ok(value),
            other => Err(self.lock().corrupt(format!("{other:?} as a value"))),
        }
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.add_raw(&wire_key(key), delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        let (key, mut request) = (wire_key(key), Vec::new());
        request::compare_set(&mut request, &key, expected, desired);
        self.lock()
            .suspect("compare and set", &key, expected.len().max(desired.len()));
        match self.ask("compare and set", &key, request, Shape::Bytes)? {
            Reply::Bytes(value) => Ok(value),
            other => Err(self.lock().corrupt(format!("{other:?} as a value"))),
        }
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let keys: Vec<Vec<u8>> = keys.iter().map(|key| wire_key(key)).collect();
        let mut request = Vec::new();
        request::check(&mut request, &keys);
        let shown = keys.first().map_or(&b""[..], |key| key);
        match self.ask("check", shown, request, Shape::Byte)? {
            Reply::Byte(byte) => match CheckReply::from_byte(byte) {
                Ok(reply) => Ok(reply == CheckReply::Ready),
                Err(error) => Err(self.lock().corrupt(error.to_string())),
            },
            other => Err(self.lock().corrupt(format!("{other:?} as a check"))),
        }
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        self.wait_then("wait for", keys, limit, None)?;
        Ok(())
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let (key, mut request) = (wire_key(key), Vec::new());
        request::delete_key(&mut request, &key);
        Ok(self.count("delete", &key, request)? > 0)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        let mut request = Vec::new();
        request::get_num_keys(&mut request);
        self.count("count", b"", request)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let mut request = Vec::new();
        request::list_keys(&mut request);
        let names = match self.ask("list", b"", request, Shape::List)? {
            Reply::List(names) => names,
            other => return Err(self.lock().corrupt(format!("{other:?} as a list"))),
        };
        names
            .iter()
            .filter_map(|name| name.strip_prefix(b"/"))
            .map(|key| match str::from_utf8(key) {
                Ok(key) => Ok(key.to_owned()),
                Err(_) => Err(self
                    .lock()
                    .corrupt(format!("a key that is not UTF-8: {key:?}"))),
            })
            .collect()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let (key, mut request) = (wire_key(key), Vec::new());
        request::append_head(&mut request, &key, value.len());
        self.tell("append to", &key, request, value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        let wire_keys: Vec<Vec<u8>> = keys.iter().map(|key| wire_key(key)).collect();
        let mut request = Vec::new();
        request::multi_get(&mut request, &wire_keys);
        let then = Some((request, Shape::Values(keys.len())));
        match self.wait_then("get", keys, self.timeout(), then)? {
            Some(Reply::Values(values)) => Ok(values),
            other => Err(self.lock().corrupt(format!("{other:?} as values"))),
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let pairs: Vec<(Vec<u8>, &[u8])> = pairs
            .iter()
            .map(|(key, value)| (wire_key(key), *value))
            .collect();
        let mut request = Vec::new();
        request::multi_set(&mut request, &pairs);
        for (key, value) in &pairs {
            self.lock().suspect("set", key, value.len());
        }
        let shown = pairs.first().map_or(&b""[..], |(key, _)| key);
        self.tell("set", shown, request, b"")
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let (key, mut request) = (wire_key(key), Vec::new());
        request::queue_push_head(&mut request, &key, value.len());
        self.tell(PUSH, &key, request, value)
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        let mut request = Vec::new();
        request::queue_pop(&mut request, &wire_key(key));
        let deadline = Deadline::after(self.timeout());
        loop {
            let popped = if block {
                let limit = deadline.remaining().unwrap_or(Duration::MAX);
                let then = Some((request.clone(), Shape::Pop));
                self.wait_then(POP, &[key], limit, then)?
            } else {
                let request = request.clone();
                Some(self.ask(POP, &wire_key(key), request, Shape::Pop)?)
            };
            match popped {
                Some(Reply::Pop(Some(value))) => return Ok(value),
                // Another client was faster after both had been told that something is there; the
                // reference reports an empty queue then, although it was told to wait.
                Some(Reply::Pop(None)) if block && !deadline.has_passed() => {}
                Some(Reply::Pop(None)) => {
                    return Err(StoreError::QueueEmpty {
                        key: key.to_owned(),
                    });
                }
                other => return Err(self.lock().corrupt(format!("{other:?} as a value"))),
            }
        }
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let (key, mut request) = (wire_key(key), Vec::new());
        request::queue_len(&mut request, &key);
        self.count(MEASURE, &key, request)
    }

    /// A request of its own, counted by the server under the key itself.
    fn barrier(
        &self,
        key: &str,
        world_size: u32,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        let wire_key = wire_key(key);
        let mut request = Vec::new();
        request::barrier(&mut request, &wire_key, i64::from(world_size));
        let sent = Operation {
            request,
            expects: Expects::Release {
                limit: timeout.unwrap_or_else(|| self.timeout()),
                then: None,
            },
        };
        let mut connected = self.lock();
        let elapsed = match connected.perform(BARRIER, &wire_key, sent, &[], self.patience())? {
            Ended::Answered(_) => return Ok(()),
            Ended::TimedOut(elapsed) => elapsed,
        };
        // The key is there: we were counted under it.
        let mut request = Vec::new();
        request::get(&mut request, &wire_key);
        let counted =
            match connected.ask("get", &wire_key, request, Shape::Bytes, LEAST_PATIENCE)? {
                Reply::Bytes(value) => number::parse(&value),
                _ => None,
            };
        Err(StoreError::BarrierTimeout {
            store: connected.link.peer().to_string(),
            key: key.to_owned(),
            arrived: counted.unwrap_or(0),
            world_size: i64::from(world_size),
            elapsed,
        })
    }

    fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    /// Opens a second connection, to the address that the first one found.
    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let address = self.lock().link.peer();
        let numeric = Endpoint {
            host: address.ip().to_string(),
            port: address.port(),
        };
        let link = connect(&numeric, &Deadline::after(self.timeout()))?;
        Ok(Box::new(Self::over(
            link,
            self.endpoint.clone(),
            self.timeout(),
            self.server.clone(),
        )))
    }
}

/// The name of an API key on the wire.
fn wire_key(key: &str) -> Vec<u8> {
    [b"/", key.as_bytes()].concat()
}

fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}
