//! The calls of the store API, as requests on the wire and what becomes of their replies.
//!
//! | call | on the wire |
//! |---|---|
//! | set, append, queue_push, multi_set | one request, no reply |
//! | get, multi_get, queue_pop that blocks | a wait for the keys, then the request |
//! | wait, barrier | one request, one byte in due time; cancelled on a timeout |
//! | all others | one request, one reply |

use std::time::Duration;

use bytes::Bytes;
use rdzv_core::endpoint::Endpoint;
use rdzv_store_proto::wire::reply::{CheckReply, Reply, Shape};
use rdzv_store_proto::wire::request;

use super::client::{Barrier, TcpStore, wire_key};
use super::connect::connect;
use super::connected::{MEASURE, POP, PUSH};
use crate::deadline::Deadline;
use crate::{Breaker, Store, StoreError};

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
        let limit = timeout.unwrap_or_else(|| self.timeout());
        match self.enter_barrier(&wire_key(key), i64::from(world_size), limit)? {
            Barrier::Passed => Ok(()),
            Barrier::TimedOut { arrived, elapsed } => Err(StoreError::BarrierTimeout {
                store: self.lock().peer().to_string(),
                key: key.to_owned(),
                arrived,
                world_size: i64::from(world_size),
                elapsed,
            }),
        }
    }

    fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    fn breaker(&self) -> Option<Breaker> {
        Some(self.breaker_of_socket())
    }

    /// Opens a second connection, to the address that the first one found.
    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let address = self.peer();
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
