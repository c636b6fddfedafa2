//! A store in etcd: a folder of keys, values as they are.
//!
//! What changes a value by what it was (`add`, `append`, `compare_set`) reads, and writes if nobody
//! has written since. Beside the value it writes which operation that was, so that one whose answer
//! was lost, and which is therefore sent again, is not done twice.
//!
//! etcd takes 1.5 MiB in one request unless its server is told otherwise. Queues are not offered.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_store::{Breaker, Store, StoreError};
use serde_json::{Value, json};

use super::failure::{Cause, Failure, Patience};
use super::http::Http;
use super::leases::Leases;
use super::options::EtcdOptions;
use super::update::{Update, added, appended, compared};
use super::v3::{Answered, Held, V3, held};
use super::watch::{End, SILENCE, away, next_answer};
use super::wire::{Int, TxnAnswer, count, read, text, unchanged_since, write};
use crate::RendezvousError;

/// How long waiting operations wait unless told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// etcd takes 128 operations in one transaction.
const OPERATIONS: usize = 100;

/// A folder of keys on an etcd server.
pub struct EtcdStore {
    v3: V3,
    leases: Arc<Leases>,
    /// Ends with a slash.
    folder: String,
    timeout: Mutex<Duration>,
    /// Where the last operation of this handle is noted.
    applied: String,
    /// The number of that operation. Locked during an operation, as there is one note only.
    operation: Mutex<u64>,
}

impl EtcdStore {
    /// The keys in a folder of that name on that server, which need not be up yet; names are joined
    /// to the options' prefix with a slash.
    pub fn open(options: &EtcdOptions, folder: &str) -> Result<Self, RendezvousError> {
        let v3 = V3::new(Http::new(options)?, options.read_timeout);
        let leases = Leases::new(v3.clone(), options.lease_time_to_live)?;
        let prefix = options.prefix.trim_end_matches('/');
        Ok(Self::new(
            &v3,
            Arc::new(leases),
            &format!("{prefix}/{folder}/"),
        ))
    }

    /// The keys in `folder`, which ends with a slash, through connections of its own.
    pub(crate) fn new(v3: &V3, leases: Arc<Leases>, folder: &str) -> Self {
        Self {
            v3: v3.separate(),
            leases,
            folder: folder.to_owned(),
            timeout: Mutex::new(DEFAULT_TIMEOUT),
            applied: format!("{folder}applied/{:016x}", fastrand::u64(..)),
            operation: Mutex::new(0),
        }
    }

    fn full(&self, key: &str) -> Vec<u8> {
        format!("{}{key}", self.keys()).into_bytes()
    }

    fn keys(&self) -> String {
        format!("{}keys/", self.folder)
    }

    /// Changes the value under `key` to what `change` says, given what is there.
    fn update<T>(
        &self,
        name: &'static str,
        key: &str,
        change: impl Fn(Option<&Bytes>) -> Result<Update<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let full = self.full(key);
        let mut number = self
            .operation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let (mut now, _) = self.v3.read(&full)?;
        loop {
            let (value, result) = match change(now.as_ref().map(|now| &now.value))? {
                Update::Keep(result) => return Ok(result),
                Update::Store(value, result) => (value, result),
            };
            *number += 1;
            let note = number.to_string();
            let revision = now.map_or(0, |now| now.revision);
            let answered = self.leases.with_lasting(&full, |lease| {
                let applied = self.applied.as_bytes();
                let puts = [
                    write(&full, &value, lease),
                    write(applied, note.as_bytes(), lease),
                ];
                let compare = [unchanged_since(&full, revision)];
                let reads = [read(&full), read(applied)];
                self.v3.transact(name, &full, &compare, &puts, &reads)
            })?;
            if answered.answer.succeeded {
                return Ok(result);
            }
            let mut found = ranges(&answered);
            let noted = found.pop().flatten();
            if answered.repeated && noted.is_some_and(|noted| noted.value == note.as_bytes()) {
                return Ok(result);
            }
            now = found.pop().flatten();
        }
    }

    /// Which of the keys are absent, and as of which revision.
    fn missing<'a>(&self, keys: &[&'a str]) -> Result<(Vec<&'a str>, i64), StoreError> {
        let mut missing = Vec::new();
        let mut revision = i64::MAX;
        for part in keys.chunks(OPERATIONS) {
            let counts: Vec<Value> = part.iter().map(|key| count(&self.full(key))).collect();
            let first = self.full(part[0]);
            let answer = self.v3.transact("check", &first, &[], &counts, &[])?.answer;
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

    /// Waits until `key` is written after `revision`, the connection ends, or `limit` has passed.
    fn wait_for_write(&self, key: &str, revision: i64, limit: Duration) -> Result<(), Cause> {
        let creation = json!({
            "key": text(&self.full(key)),
            "start_revision": Int(revision.saturating_add(1)),
            "filters": ["NODELETE"]
        });
        let limit = Some(limit.min(SILENCE));
        let mut lines = self.v3.watch(&[creation], SILENCE, limit)?;
        loop {
            match next_answer(&mut lines) {
                Ok(answer) if answer.canceled || !answer.events.is_empty() => return Ok(()),
                Ok(answer) if answer.created && answer.header.revision.0 < revision => {
                    return Err(away("etcd has lost its memory"));
                }
                Ok(_) => {}
                Err(End::Silent | End::Gap) => return Ok(()),
                Err(End::Broken(cause)) => return Err(cause),
            }
        }
    }

    fn write_all(&self, pairs: &[(&str, &[u8])]) -> Result<(), Failure> {
        for part in pairs.chunks(OPERATIONS) {
            let first = self.full(part[0].0);
            self.leases.with_lasting(&first, |lease| {
                let puts: Vec<Value> = part
                    .iter()
                    .map(|(key, value)| write(&self.full(key), value, lease))
                    .collect();
                self.v3.transact("set", &first, &[], &puts, &[])
            })?;
        }
        Ok(())
    }
}

/// What the reads of a transaction have found, in their order.
fn ranges(answered: &Answered<TxnAnswer>) -> Vec<Option<Held>> {
    let responses = answered.answer.responses.iter();
    responses
        .map(|response| response.response_range.as_ref().and_then(held))
        .collect()
}

impl Store for EtcdStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        Ok(self.write_all(&[(key, value)])?)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        let mut values = self.multi_get(&[key])?;
        Ok(values.pop().unwrap_or_default())
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
        Ok(self.missing(keys)?.0.is_empty())
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        let started = Instant::now();
        let mut away = Patience::of(limit);
        loop {
            let (missing, revision) = self.missing(keys)?;
            let Some(first) = missing.first() else {
                return Ok(());
            };
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                return Err(StoreError::WaitTimeout {
                    store: format!("{self:?}"),
                    keys: keys.iter().map(|&key| key.to_owned()).collect(),
                    missing: missing.iter().map(|&key| key.to_owned()).collect(),
                    elapsed: started.elapsed(),
                });
            }
            // One key after the other; when it is there, so are most of the others.
            match self.wait_for_write(first, revision, left) {
                Ok(()) => {}
                // The next look says whether the server is really away.
                Err(cause) if cause.is_passing() => {
                    if let Some(pause) = away.pause() {
                        self.v3.http().pause(pause);
                    }
                }
                Err(cause) => {
                    return Err(away
                        .failure("wait for", first, self.v3.http().place(), cause)
                        .into());
                }
            }
        }
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.v3.remove(&self.full(key), None)? > 0)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        let count = self.v3.count(self.keys().as_bytes())?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let folder = self.keys();
        let found = self.v3.range(folder.as_bytes(), true)?;
        let names = found.kvs.iter().map(|found| {
            let name = found.key.0.get(folder.len()..).unwrap_or_default();
            String::from_utf8_lossy(name).into_owned()
        });
        Ok(names.collect())
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        let limit = self.timeout();
        let started = Instant::now();
        loop {
            let mut values = Vec::with_capacity(keys.len());
            for part in keys.chunks(OPERATIONS) {
                let reads: Vec<Value> = part.iter().map(|key| read(&self.full(key))).collect();
                let first = self.full(part[0]);
                let found = self.v3.transact("get", &first, &[], &reads, &[])?;
                values.extend(ranges(&found));
            }
            let values: Option<Vec<Bytes>> = values
                .into_iter()
                .map(|held| held.map(|held| held.value))
                .collect();
            match values {
                Some(values) if values.len() == keys.len() => return Ok(values),
                _ => self.wait(keys, Some(limit.saturating_sub(started.elapsed())))?,
            }
        }
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        // One transaction may write a key once only: the last value counts.
        let last = |at: usize| !pairs[at + 1..].iter().any(|later| later.0 == pairs[at].0);
        let pairs: Vec<(&str, &[u8])> = (0..pairs.len())
            .filter(|&at| last(at))
            .map(|at| pairs[at])
            .collect();
        Ok(self.write_all(&pairs)?)
    }

    fn has_extended_api(&self) -> bool {
        true
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
        let http = self.v3.http().clone();
        Some(Arc::new(move || http.close()))
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let clone = Self::new(&self.v3, Arc::clone(&self.leases), &self.folder);
        clone.set_timeout(self.timeout());
        Ok(Box::new(clone))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{}", self.v3.http().place(), self.keys())
    }
}
