//! Store in etcd: a folder of keys. Keys and values are stored unchanged.
//!
//! `add`, `append` and `compare_set` compute a value from the old one. They read the value, and
//! write only if no other client has written since. The same transaction records the number of the
//! operation. An operation that is retried because its answer was lost therefore takes effect only
//! once.
//!
//! By default, etcd accepts requests of up to 1.5 MiB. Queues are not supported.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_store::{Breaker, Store, StoreConnection, StoreError, interrupt};
use rdzv_store_proto::number;
use serde_json::{Value, json};

use super::failure::{Cause, Retry};
use super::http::{Client, SILENCE};
use super::leases::Leases;
use super::options::EtcdOptions;
use super::watch::{End, next_answer};
use super::wire::{Int, count, read, text, unchanged_since, write};
use crate::RendezvousError;

/// Maximum number of operations in one transaction, below etcd's limit of 128.
const OPERATIONS: usize = 100;

/// Default timeout for operations that wait.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Maximum number of bytes of a value that an error shows.
const SHOWN: usize = 32;

/// Store that keeps its keys in one folder of an etcd server, with leases.
pub struct EtcdStore {
    client: Client,
    leases: Arc<Leases>,
    /// Name of the folder, with a trailing slash.
    folder: String,
    /// Key that records the last operation of this handle.
    applied: String,
    /// Number of the last operation.
    ///
    /// An operation holds the lock, because there is only one record.
    operation: Mutex<u64>,
    timeout: Mutex<Duration>,
}

impl EtcdStore {
    /// Opens the store in `folder` on a server, which need not be running yet.
    ///
    /// The full name is the prefix from the options, a slash, and `folder`.
    ///
    /// # Errors
    ///
    /// [`RendezvousError`] if a certificate cannot be read, or no thread can be started.
    pub fn open(options: &EtcdOptions, folder: &str) -> Result<Self, RendezvousError> {
        let client = Client::new(options)?;
        let leases = Leases::new(client.clone(), options.lease_time_to_live)?;
        let prefix = options.prefix.trim_end_matches('/');
        let folder = format!("{prefix}/{folder}/");
        Ok(Self::new(&client, Arc::new(leases), &folder))
    }

    /// Opens the store in `folder`, which must have a trailing slash.
    ///
    /// The store uses separate connections.
    pub(super) fn new(client: &Client, leases: Arc<Leases>, folder: &str) -> Self {
        Self {
            client: client.separate(),
            leases,
            folder: folder.to_owned(),
            applied: format!("{folder}applied/{:016x}", fastrand::u64(..)),
            operation: Mutex::new(0),
            timeout: Mutex::new(DEFAULT_TIMEOUT),
        }
    }

    fn keys(&self) -> String {
        format!("{}keys/", self.folder)
    }

    fn full(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.keys()).into_bytes()
    }

    /// Changes the value under `key`.
    ///
    /// `change` receives the current value, and returns the new value and the result of the
    /// operation. A new value of `None` keeps the current value. If another client writes in
    /// between, `change` is called again.
    fn update<T>(
        &self,
        operation: &'static str,
        key: &str,
        change: impl Fn(Option<&Bytes>) -> Result<(Option<Vec<u8>>, T), StoreError>,
    ) -> Result<T, StoreError> {
        let full = self.full(key);
        let applied = self.applied.as_bytes();
        let mut now = self.client.read(&full)?.0;
        loop {
            let (value, result) = change(now.as_ref().map(|now| &now.value))?;
            let Some(value) = value else {
                return Ok(result);
            };
            let revision = now.map_or(0, |now| now.mod_revision.0);
            let mut number = self.operation.lock();
            *number += 1;
            let note = number.to_string();
            let answered = self.leases.with_lasting(&full, |lease| {
                let puts = [
                    write(&full, &value, lease),
                    write(applied, note.as_bytes(), lease),
                ];
                let compare = [unchanged_since(&full, revision)];
                let reads = [read(&full), read(applied)];
                self.client
                    .transact(operation, &full, &compare, &puts, &reads)
            })?;
            let mut found = answered.all_held();
            let noted = found.pop().flatten();
            let is_ours = || noted.is_some_and(|noted| noted.value == note.as_bytes());
            if answered.succeeded || answered.repeated && is_ours() {
                return Ok(result);
            }
            now = found.pop().flatten();
        }
    }

    /// Waits for `keys` until `limit` after `started`.
    fn wait_for(
        &self,
        operation: &'static str,
        keys: &[&str],
        started: Instant,
        limit: Duration,
    ) -> Result<(), StoreError> {
        let owned = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
        let mut retry = Retry::within(limit.saturating_sub(started.elapsed()));
        loop {
            let (missing, revision) = self.missing(keys)?;
            let Some(first) = missing.first() else {
                return Ok(());
            };
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(StoreError::WaitTimeout {
                    store: format!("{self:?}"),
                    keys: owned(keys),
                    missing: owned(&missing),
                    elapsed: started.elapsed(),
                });
            }
            // Waits for one key at a time; when it exists, most of the others exist too.
            let slice = interrupt::slice(Some(left)).unwrap_or(left);
            match self.wait_for_write(first, revision, slice) {
                Ok(()) if interrupt::is_wanted() => {
                    return Err(StoreError::Interrupted {
                        operation,
                        key: (*first).to_owned(),
                        elapsed: started.elapsed(),
                    });
                }
                Ok(()) => {}
                // The next read finds out whether the server is really away.
                Err(cause) if cause.is_passing() => {
                    if let Some(pause) = retry.pause() {
                        self.client.pause(pause);
                    }
                }
                Err(cause) => {
                    let endpoint = self.client.endpoint();
                    return Err(retry.failure(operation, first, endpoint, cause).into());
                }
            }
        }
    }

    fn values(&self, keys: &[&str]) -> Result<Vec<Option<Bytes>>, StoreError> {
        let mut values = Vec::with_capacity(keys.len());
        for part in keys.chunks(OPERATIONS) {
            let reads: Vec<Value> = part.iter().map(|key| read(&self.full(key))).collect();
            let first = self.full(part[0]);
            let found = self.client.transact("get", &first, &[], &reads, &[])?;
            values.extend(found.all_held().into_iter().map(|held| Some(held?.value)));
        }
        Ok(values)
    }

    /// Returns the absent keys, and the revision at which they are absent.
    fn missing<'a>(&self, keys: &[&'a str]) -> Result<(Vec<&'a str>, i64), StoreError> {
        let mut missing = Vec::new();
        let mut revision = i64::MAX;
        for part in keys.chunks(OPERATIONS) {
            let counts: Vec<Value> = part.iter().map(|key| count(&self.full(key))).collect();
            let first = self.full(part[0]);
            let answer = self.client.transact("check", &first, &[], &counts, &[])?;
            revision = revision.min(answer.header.revision.0);
            for (at, key) in part.iter().enumerate() {
                let response = answer.responses.get(at);
                let range = response.and_then(|found| found.response_range.as_ref());
                if range.is_none_or(|range| range.count.0 == 0) {
                    missing.push(*key);
                }
            }
        }
        Ok((missing, revision))
    }

    /// Waits until `key` is written after `revision`, or until `limit` has passed.
    ///
    /// It also returns if the connection ends.
    fn wait_for_write(&self, key: &str, revision: i64, limit: Duration) -> Result<(), Cause> {
        let creation = json!({
            "key": text(&self.full(key)),
            "start_revision": Int(revision.saturating_add(1)),
            "filters": ["NODELETE"]
        });
        let limit = Some(limit.min(SILENCE));
        let mut lines = self.client.watch(&[creation], limit)?;
        loop {
            match next_answer(&mut lines) {
                Ok(answer) if answer.canceled || !answer.events.is_empty() => return Ok(()),
                Ok(answer) if answer.created && answer.header.revision.0 < revision => {
                    return Err(Cause::away("etcd has lost its data", false));
                }
                Ok(_) => {}
                Err(End::Silent | End::Gap) => return Ok(()),
                Err(End::Broken(cause)) => return Err(cause),
            }
        }
    }

    /// Writes values under keys that must all be different.
    fn write(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        for part in pairs.chunks(OPERATIONS) {
            let first = self.full(part[0].0);
            self.leases.with_lasting(&first, |lease| {
                let puts: Vec<Value> = part
                    .iter()
                    .map(|(key, value)| write(&self.full(key), value, lease))
                    .collect();
                self.client.transact("set", &first, &[], &puts, &[])
            })?;
        }
        Ok(())
    }
}

impl Store for EtcdStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.write(&[(key, value)])
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let mut values = self.multi_get(&[key])?;
        Ok(values.pop().unwrap_or_default())
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.update("add", key, |now| {
            // An absent value counts as 0.
            let number = match now {
                None => 0,
                Some(text) => number::parse(text).ok_or_else(|| StoreError::NotANumber {
                    key: key.to_owned(),
                    value: String::from_utf8_lossy(&text[..text.len().min(SHOWN)]).into_owned(),
                })?,
            };
            let sum = number.wrapping_add(delta);
            Ok((Some(sum.to_string().into_bytes()), sum))
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.update("compare_set", key, |now| {
            Ok(match now {
                Some(now) if now != expected => (None, now.clone()),
                // PyTorch's answer for an absent value.
                None if !expected.is_empty() => (None, Bytes::copy_from_slice(expected)),
                _ => (Some(desired.to_vec()), Bytes::copy_from_slice(desired)),
            })
        })
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.update("append", key, |now| {
            let whole = [now.map_or(&b""[..], |now| &now[..]), value].concat();
            Ok((Some(whole), ()))
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        Ok(self.missing(keys)?.0.is_empty())
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        self.wait_for("wait for", keys, Instant::now(), limit)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.client.remove(&self.full(key), None)? > 0)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        let count = self.client.count(self.keys().as_bytes())?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let folder = self.keys();
        let found = self.client.range(folder.as_bytes(), true)?;
        let names = found.kvs.iter().map(|found| {
            let name = found.key.get(folder.len()..).unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        });
        Ok(names.collect())
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        let limit = self.timeout();
        let started = Instant::now();
        loop {
            let values = self.values(keys)?;
            match values.into_iter().collect::<Option<Vec<_>>>() {
                Some(values) if values.len() == keys.len() => return Ok(values),
                _ => self.wait_for("get", keys, started, limit)?,
            }
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        // A transaction can write a key only once: the last value counts.
        let last = |at: usize| !pairs[at + 1..].iter().any(|later| later.0 == pairs[at].0);
        let pairs: Vec<(&str, &[u8])> = (0..pairs.len())
            .filter(|&at| last(at))
            .map(|at| pairs[at])
            .collect();
        self.write(&pairs)
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn timeout(&self) -> Duration {
        *self.timeout.lock()
    }

    fn set_timeout(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let timeout = Duration::from_millis(millis);
        *self.timeout.lock() = timeout;
    }

    fn connection(&self) -> Option<&dyn StoreConnection> {
        Some(self)
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let clone = Self::new(&self.client, Arc::clone(&self.leases), &self.folder);
        clone.set_timeout(self.timeout());
        Ok(Box::new(clone))
    }
}

impl StoreConnection for EtcdStore {
    fn breaker(&self) -> Option<Breaker> {
        let client = self.client.clone();
        Some(Arc::new(move || client.close()))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.client.endpoint(), self.keys())
    }
}
