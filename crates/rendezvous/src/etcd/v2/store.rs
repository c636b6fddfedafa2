//! The agents' store: base64 of the key, base64 of the value, in one folder for all runs.
//!
//! A `/` in the base64 of a key makes a folder of what is before it. Python's agents never find such
//! a key again; here it is found under its path.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use rdzv_rendezvous_proto::codec::text;
use rdzv_store::{Breaker, Store, StoreError};

use super::client::{Condition, Put, V2};
use super::watch::{SILENCE, wait};
use super::wire::Node;
use crate::RendezvousError;
use crate::etcd::failure::{Cause, Failure, Patience};
use crate::etcd::http::Http;
use crate::etcd::options::EtcdOptions;
use crate::etcd::update::{Update, added, appended, compared};

/// Where the reference's agents have their stores.
const FOLDER: &str = "/torch/elastic/store";

/// How long waiting operations wait unless told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// A folder of keys on an etcd server with the v2 API. Nothing in it is cleared by etcd.
///
/// Its keys must not be empty; a [`PrefixStore`](rdzv_store::PrefixStore) around it may have an empty
/// one.
pub struct EtcdV2Store {
    client: V2,
    /// Begins and ends with a slash.
    folder: String,
    timeout: Mutex<Duration>,
}

impl EtcdV2Store {
    /// The keys in `folder`, by default the one of the reference's agents, where those of all runs
    /// are. The server need not be up yet.
    pub fn open(options: &EtcdOptions, folder: Option<&str>) -> Result<Self, RendezvousError> {
        let client = V2::new(Http::new(options)?, options.read_timeout);
        Ok(Self::new(client, folder.unwrap_or(FOLDER)))
    }

    /// The keys of the reference's agents.
    pub(super) fn of_agents(client: V2) -> Self {
        Self::new(client, FOLDER)
    }

    fn new(client: V2, folder: &str) -> Self {
        Self {
            client,
            folder: format!("/{}/", folder.trim_matches('/')),
            timeout: Mutex::new(DEFAULT_TIMEOUT),
        }
    }

    fn full(&self, key: &str) -> String {
        format!("{}{}", self.folder, BASE64_STANDARD.encode(key))
    }

    /// The value under a key with the index of its last change; else the index of the store.
    fn look(
        &self,
        operation: &'static str,
        key: &str,
    ) -> Result<Result<(Bytes, u64), u64>, StoreError> {
        let read = self.client.read(operation, &self.full(key))?;
        match read.node {
            Some(node) if !node.dir => Ok(Ok((self.value(operation, key, &node)?, node.modified))),
            _ => Ok(Err(read.index)),
        }
    }

    fn value(&self, operation: &'static str, key: &str, node: &Node) -> Result<Bytes, Failure> {
        match text::decode(node.value.as_bytes()) {
            Ok(value) => Ok(value.into()),
            Err(error) => {
                let cause = Cause::Refused {
                    code: 0,
                    message: format!("the value is none of a store: {error}"),
                };
                Err(self.client.failure(operation, key, cause))
            }
        }
    }

    /// The value under a key, once it is there.
    fn await_value(
        &self,
        operation: &'static str,
        key: &str,
        limit: Duration,
        all: &[&str],
    ) -> Result<Bytes, StoreError> {
        let started = Instant::now();
        let mut away = Patience::of(self.client.limit());
        loop {
            let index = match self.look(operation, key)? {
                Ok((value, _)) => return Ok(value),
                Err(index) => index,
            };
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(self.waited_in_vain(all, started.elapsed()));
            }
            let silence = SILENCE.min(left);
            match wait(&self.client, &self.full(key), index + 1, silence) {
                Ok(_) => away = Patience::of(self.client.limit()),
                // The next look says whether the server is really away.
                Err(cause) if cause.is_passing() => {
                    if let Some(pause) = away.pause()
                        && self.client.http().pause(pause.min(left))
                    {
                        let failure =
                            away.failure(operation, key, self.client.http().place(), cause);
                        return Err(failure.into());
                    }
                }
                Err(cause) => return Err(self.client.failure(operation, key, cause).into()),
            }
        }
    }

    fn waited_in_vain(&self, keys: &[&str], elapsed: Duration) -> StoreError {
        let owned = |key: &&str| (*key).to_owned();
        let is_missing = |key: &&&str| !matches!(self.look("check", key), Ok(Ok(_)));
        StoreError::WaitTimeout {
            store: format!("{self:?}"),
            keys: keys.iter().map(owned).collect(),
            missing: keys.iter().filter(is_missing).map(owned).collect(),
            elapsed,
        }
    }

    /// Changes the value under `key` to what `change` says, given what is there.
    fn update<T>(
        &self,
        operation: &'static str,
        key: &str,
        change: impl Fn(Option<&Bytes>) -> Result<Update<T>, StoreError>,
    ) -> Result<T, StoreError> {
        loop {
            let now = self.look(operation, key)?.ok();
            let (value, result) = match change(now.as_ref().map(|(value, _)| value))? {
                Update::Keep(result) => return Ok(result),
                Update::Store(value, result) => (value, result),
            };
            let condition = now.map_or(Condition::Absent, |(_, index)| Condition::Unchanged(index));
            let value = BASE64_STANDARD.encode(value);
            let put = self
                .client
                .write(operation, &self.full(key), &value, condition, None)?;
            match put {
                Put::Done(_) => return Ok(result),
                Put::Refused { maybe_done: false } => {}
                // The v2 API has nothing by which the two cases can be told apart.
                Put::Refused { maybe_done: true } => {
                    let cause = Cause::Away {
                        reason: "the answer to a write was lost, and whether it was carried out \
                                 cannot be found out"
                            .to_owned(),
                        maybe_done: true,
                    };
                    return Err(self.client.failure(operation, key, cause).into());
                }
            }
        }
    }

    /// All keys with a value.
    fn keys(&self) -> Result<Vec<String>, StoreError> {
        let read = self
            .client
            .read("list", self.folder.trim_end_matches('/'))?;
        let mut keys = Vec::new();
        let mut folders: Vec<Node> = read.node.into_iter().collect();
        while let Some(folder) = folders.pop() {
            for node in folder.nodes {
                if node.dir {
                    folders.push(node);
                } else if let Some(name) = node.key.strip_prefix(&self.folder)
                    && let Ok(key) = BASE64_STANDARD.decode(name)
                    && let Ok(key) = String::from_utf8(key)
                {
                    keys.push(key);
                }
            }
        }
        Ok(keys)
    }
}

impl Store for EtcdV2Store {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let value = BASE64_STANDARD.encode(value);
        self.client
            .write("set", &self.full(key), &value, Condition::Always, None)?;
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.await_value("get", key, self.timeout(), &[key])
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.update("add", key, |now| added(key, now, delta))
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.update("compare_set", key, |now| {
            Ok(compared(now, expected, desired))
        })
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.update("append", key, |now| Ok(appended(now, value)))
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        for key in keys {
            if self.look("check", key)?.is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        let started = Instant::now();
        for key in keys {
            let left = limit.saturating_sub(started.elapsed());
            self.await_value("wait for", key, left, keys)?;
        }
        Ok(())
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.client.remove(&self.full(key))?)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        Ok(self.keys()?.len() as u64)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.keys()
    }

    fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let timeout = Duration::from_millis(millis);
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
    }

    fn breaker(&self) -> Option<Breaker> {
        let http = self.client.http().clone();
        Some(Arc::new(move || http.close()))
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let clone = Self::new(self.client.separate(), &self.folder);
        clone.set_timeout(self.timeout());
        Ok(Box::new(clone))
    }
}

impl fmt::Debug for EtcdV2Store {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.client.http().place(), self.folder)
    }
}
