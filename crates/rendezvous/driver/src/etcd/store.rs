//! A store in etcd: the keys of a folder, through either API.
//!
//! What changes a value by what it was (`add`, `append`, `compare_set`) reads, and writes if nobody
//! has written since.
//!
//! etcd takes 1.5 MiB in one request unless its server is told otherwise. Queues are not offered.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_store::{Breaker, Store, StoreError, interrupt};
use rdzv_store_proto::number;

use super::failure::{Cause, Retry};
use super::http::Http;

/// How long waiting operations wait unless told otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// What is under a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) value: Bytes,
    /// The revision of the last change.
    pub(crate) revision: i64,
}

/// A write that is to happen if the key was last changed at `revision` (0: is absent).
pub(super) struct ConditionalWrite<'a> {
    pub(super) operation: &'static str,
    pub(super) key: &'a str,
    pub(super) revision: i64,
    pub(super) value: &'a [u8],
}

/// How a conditional write ended.
pub(super) enum Swap {
    Done,
    /// Somebody else has written in the meantime; what is there now.
    Lost(Option<Held>),
}

/// A folder of keys, through one of etcd's APIs.
pub(super) trait Folder: Send + Sync {
    /// The client.
    fn http(&self) -> &Http;

    /// The folder's name, for errors.
    fn name(&self) -> String;

    /// The same folder, through connections of its own.
    fn separate(&self) -> Box<dyn Folder>;

    /// How many keys are read and awaited together.
    fn batch(&self) -> usize;

    /// Whether several keys are read, and several written, by one request.
    fn has_extended_api(&self) -> bool;

    /// What is under a key.
    fn held(&self, operation: &'static str, key: &str) -> Result<Option<Held>, StoreError>;

    /// The values of a batch of keys.
    fn values(&self, keys: &[&str]) -> Result<Vec<Option<Bytes>>, StoreError>;

    /// Which of the keys are absent, and as of which revision.
    fn missing<'a>(
        &self,
        operation: &'static str,
        keys: &[&'a str],
    ) -> Result<(Vec<&'a str>, i64), StoreError>;

    /// Waits until `key` is written after `revision`, the connection ends, or `limit` has passed.
    fn wait_for_write(&self, key: &str, revision: i64, limit: Duration) -> Result<(), Cause>;

    /// Writes values under keys that all differ.
    fn write(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError>;

    /// Writes a value on a condition.
    fn swap(&self, write: &ConditionalWrite<'_>) -> Result<Swap, StoreError>;

    /// Removes a key; tells whether it was there.
    fn remove(&self, key: &str) -> Result<bool, StoreError>;

    /// All keys with a value.
    fn keys(&self) -> Result<Vec<String>, StoreError>;

    /// How many keys there are.
    fn count(&self) -> Result<u64, StoreError>;
}

/// A folder of keys on an etcd server.
pub struct EtcdStore {
    folder: Box<dyn Folder>,
    timeout: Mutex<Duration>,
}

impl EtcdStore {
    pub(super) fn over(folder: impl Folder + 'static) -> Self {
        Self {
            folder: Box::new(folder),
            timeout: Mutex::new(DEFAULT_TIMEOUT),
        }
    }

    /// Changes the value under `key` to what `change` says, given what is there.
    fn update<T>(
        &self,
        operation: &'static str,
        key: &str,
        change: impl Fn(Option<&Bytes>) -> Result<Update<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let mut now = self.folder.held(operation, key)?;
        loop {
            let (value, result) = match change(now.as_ref().map(|now| &now.value))? {
                Update::Keep(result) => return Ok(result),
                Update::Store(value, result) => (value, result),
            };
            let write = ConditionalWrite {
                operation,
                key,
                revision: now.map_or(0, |now| now.revision),
                value: &value,
            };
            match self.folder.swap(&write)? {
                Swap::Done => return Ok(result),
                Swap::Lost(found) => now = found,
            }
        }
    }

    /// Waits for `keys`, which are a batch of `all`, until `limit` after the beginning of the call.
    fn wait_for(
        &self,
        operation: &'static str,
        keys: &[&str],
        (started, limit): (Instant, Duration),
        all: &[&str],
    ) -> Result<(), StoreError> {
        let owned = |keys: &[&str]| keys.iter().map(|&key| key.to_owned()).collect();
        let mut retry = Retry::within(limit.saturating_sub(started.elapsed()));
        loop {
            let (missing, revision) = self.folder.missing(operation, keys)?;
            let Some(first) = missing.first() else {
                return Ok(());
            };
            let left = limit.saturating_sub(started.elapsed());
            if left.is_zero() {
                let missing = match self.folder.missing("check", all) {
                    Ok((missing, _)) => owned(&missing),
                    Err(_) => owned(all),
                };
                return Err(StoreError::WaitTimeout {
                    store: format!("{self:?}"),
                    keys: owned(all),
                    missing,
                    elapsed: started.elapsed(),
                });
            }
            // One key after the other; when it is there, so are most of the others.
            let slice = interrupt::slice(Some(left)).unwrap_or(left);
            match self.folder.wait_for_write(first, revision, slice) {
                Ok(()) if interrupt::is_wanted() => {
                    return Err(StoreError::Interrupted {
                        operation,
                        key: (*first).to_owned(),
                        elapsed: started.elapsed(),
                    });
                }
                Ok(()) => {}
                // The next read says whether the server is really away.
                Err(cause) if cause.is_passing() => {
                    if let Some(pause) = retry.pause() {
                        self.folder.http().pause(pause);
                    }
                }
                Err(cause) => {
                    let place = self.folder.http().place();
                    return Err(retry.failure(operation, first, place, cause).into());
                }
            }
        }
    }
}

impl Store for EtcdStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.folder.write(&[(key, value)])
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
        Ok(self.folder.missing("check", keys)?.0.is_empty())
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let limit = timeout.unwrap_or_else(|| self.timeout());
        let started = Instant::now();
        for batch in keys.chunks(self.folder.batch()) {
            self.wait_for("wait for", batch, (started, limit), keys)?;
        }
        Ok(())
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.folder.remove(key)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.folder.count()
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.folder.keys()
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        let limit = self.timeout();
        let mut found = Vec::with_capacity(keys.len());
        for batch in keys.chunks(self.folder.batch()) {
            let started = Instant::now();
            let values: Vec<Bytes> = loop {
                let values = self.folder.values(batch)?;
                match values.into_iter().collect::<Option<Vec<_>>>() {
                    Some(values) if values.len() == batch.len() => break values,
                    _ => {}
                }
                self.wait_for("get", batch, (started, limit), batch)?;
            };
            found.extend(values);
        }
        Ok(found)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        // One transaction may write a key once only: the last value counts.
        let last = |at: usize| !pairs[at + 1..].iter().any(|later| later.0 == pairs[at].0);
        let pairs: Vec<(&str, &[u8])> = (0..pairs.len())
            .filter(|&at| last(at))
            .map(|at| pairs[at])
            .collect();
        self.folder.write(&pairs)
    }

    fn has_extended_api(&self) -> bool {
        self.folder.has_extended_api()
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
        let http = self.folder.http().clone();
        Some(Arc::new(move || http.close()))
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(Self {
            folder: self.folder.separate(),
            timeout: Mutex::new(self.timeout()),
        }))
    }
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { folder, .. } = self;
        write!(formatter, "{}{}", folder.http().place(), folder.name())
    }
}

/// How much of a value an error shows.
const SHOWN: usize = 32;

/// What becomes of a value.
enum Update<T> {
    /// It stays, and the operation's result is this.
    Keep(T),
    /// It becomes these bytes, and the operation's result is that.
    Store(Vec<u8>, T),
}

/// `add`: the sum, as decimal text. An absent value counts as 0.
fn added(key: &str, now: Option<&Bytes>, delta: i64) -> Result<Update<i64>, StoreError> {
    let number = match now {
        None => 0,
        Some(text) => number::parse(text).ok_or_else(|| {
            let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
            StoreError::NotANumber {
                key: key.to_owned(),
                value: shown.into_owned(),
            }
        })?,
    };
    let sum = number.wrapping_add(delta);
    Ok(Update::Store(sum.to_string().into_bytes(), sum))
}

/// `compare_set`: what the value is then, with PyTorch's answer for an absent one.
fn compared(now: Option<&Bytes>, expected: &[u8], desired: &[u8]) -> Update<Bytes> {
    match now {
        Some(now) if now != expected => Update::Keep(now.clone()),
        None if !expected.is_empty() => Update::Keep(Bytes::copy_from_slice(expected)),
        _ => Update::Store(desired.to_vec(), Bytes::copy_from_slice(desired)),
    }
}

/// `append`.
fn appended(now: Option<&Bytes>, value: &[u8]) -> Update<()> {
    let mut whole = now.map_or_else(Vec::new, |now| now.to_vec());
    whole.extend_from_slice(value);
    Update::Store(whole, ())
}
