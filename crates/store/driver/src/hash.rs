//! In-process store: a map, its queues, and one condition variable.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use rdzv_lock::{Condvar, Mutex};

use crate::deadline::{Deadline, SharedTimeout};
use crate::error::number_held;
use crate::{Store, StoreError, interrupt};

/// Store that lives in this process. Clones share the data and the timeout.
///
/// The semantics are those of the TCP store, with these exceptions. `add` counts an empty value as
/// 0, as in PyTorch's `HashStore`. `get` waits for a key and not for a queue. `barrier` uses the
/// general form. Every write and every entry of a queue wake all waiting callers. `multi_set` is
/// always atomic.
#[derive(Clone, Default)]
pub struct HashStore {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    data: Mutex<Data>,
    changed: Condvar,
    timeout: SharedTimeout,
}

#[derive(Default)]
struct Data {
    values: HashMap<String, Bytes>,
    queues: HashMap<String, VecDeque<Bytes>>,
}

impl Data {
    fn is_present(&self, key: &str) -> bool {
        self.values.contains_key(key) || self.queue_len(key) > 0
    }

    fn queue_len(&self, key: &str) -> usize {
        self.queues.get(key).map_or(0, VecDeque::len)
    }

    fn pop(&mut self, key: &str) -> Option<Bytes> {
        let queue = self.queues.get_mut(key)?;
        let value = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(key);
        }
        value
    }
}

impl fmt::Debug for HashStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("HashStore")
    }
}

impl HashStore {
    /// Creates an empty store.
    pub fn new() -> Self {
        Self::default()
    }

    fn change<T>(&self, change: impl FnOnce(&mut Data) -> T) -> T {
        let result = change(&mut self.shared.data.lock());
        self.shared.changed.notify_all();
        result
    }

    /// Calls `take` now and after every change until it returns a value.
    /// On a timeout, the error names the keys for which `is_missing` still returns `true`.
    fn wait_for<T>(
        &self,
        operation: &'static str,
        keys: &[&str],
        timeout: Duration,
        mut take: impl FnMut(&mut Data) -> Option<T>,
        is_missing: impl Fn(&Data, &str) -> bool,
    ) -> Result<T, StoreError> {
        let deadline = Deadline::after(timeout);
        let mut data = self.shared.data.lock();
        loop {
            if let Some(taken) = take(&mut data) {
                return Ok(taken);
            }
            if deadline.has_passed() {
                return Err(StoreError::WaitTimeout {
                    store: "HashStore".to_owned(),
                    keys: keys.iter().map(ToString::to_string).collect(),
                    missing: keys
                        .iter()
                        .filter(|key| is_missing(&data, key))
                        .map(ToString::to_string)
                        .collect(),
                    elapsed: deadline.elapsed(),
                });
            }
            let left = interrupt::slice(deadline.remaining()).unwrap_or(Duration::MAX);
            let (woken, is_over) = self.shared.changed.wait_timeout(data, left);
            data = woken;
            if is_over {
                // The check may take other locks, so the lock on the data is released first.
                drop(data);
                interrupt::check(operation, keys, deadline.elapsed())?;
                data = self.shared.data.lock();
            }
        }
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let value = Bytes::copy_from_slice(value);
        self.change(|data| data.values.insert(key.to_owned(), value));
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.get_within(key, None)
    }

    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        self.wait_for(
            "get",
            &[key],
            timeout.unwrap_or_else(|| self.timeout()),
            |data| data.values.get(key).cloned(),
            |data, key| !data.values.contains_key(key),
        )
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.change(|data| {
            let sum = number_held(key, data.values.get(key))?.wrapping_add(delta);
            data.values.insert(key.to_owned(), sum.to_string().into());
            Ok(sum)
        })
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.change(|data| {
            match data.values.get(key) {
                Some(held) if held[..] != *expected => return Ok(held.clone()),
                None if !expected.is_empty() => return Ok(Bytes::copy_from_slice(expected)),
                _ => {}
            }
            let desired = Bytes::copy_from_slice(desired);
            data.values.insert(key.to_owned(), desired.clone());
            Ok(desired)
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let data = self.shared.data.lock();
        Ok(keys.iter().all(|key| data.is_present(key)))
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.wait_for(
            "wait for",
            keys,
            timeout.unwrap_or_else(|| self.timeout()),
            |data| keys.iter().all(|key| data.is_present(key)).then_some(()),
            |data, key| !data.is_present(key),
        )
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.shared.data.lock().values.remove(key).is_some())
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        Ok(self.shared.data.lock().values.len() as u64)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.shared.data.lock().values.keys().cloned().collect())
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.change(|data| {
            let held = data.values.remove(key).unwrap_or_default();
            // The value grows in place unless a reader still holds it.
            let mut grown = held.try_into_mut().unwrap_or_else(BytesMut::from);
            grown.extend_from_slice(value);
            data.values.insert(key.to_owned(), grown.freeze());
        });
        Ok(())
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.wait_for(
            "get",
            keys,
            self.timeout(),
            |data| {
                keys.iter()
                    .map(|key| data.values.get(*key).cloned())
                    .collect()
            },
            |data, key| !data.values.contains_key(key),
        )
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        self.change(|data| {
            for (key, value) in pairs {
                data.values
                    .insert((*key).to_owned(), Bytes::copy_from_slice(value));
            }
        });
        Ok(())
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let value = Bytes::copy_from_slice(value);
        self.change(|data| {
            data.queues
                .entry(key.to_owned())
                .or_default()
                .push_back(value);
        });
        Ok(())
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        if !block {
            let popped = self.shared.data.lock().pop(key);
            return popped.ok_or_else(|| StoreError::QueueEmpty {
                key: key.to_owned(),
            });
        }
        self.wait_for(
            "pop from the queue",
            &[key],
            self.timeout(),
            |data| data.pop(key),
            |data, key| data.queue_len(key) == 0,
        )
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        Ok(self.shared.data.lock().queue_len(key) as u64)
    }

    fn timeout(&self) -> Duration {
        self.shared.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.shared.timeout.set(timeout);
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(self.clone()))
    }
}
