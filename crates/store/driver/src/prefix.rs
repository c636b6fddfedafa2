//! Separate key space inside a shared store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_store_proto::prefix::{join, strip};

use crate::{Store, StoreConnection, StoreError};

/// Wrapper that prepends `prefix/` to every key of another store.
///
/// `num_keys` and the timeout are those of the wrapped store, shared with all its users. `barrier`
/// uses the general form, as in PyTorch, so that members with different kinds of store can share a
/// barrier.
#[derive(Debug)]
pub struct PrefixStore {
    prefix: String,
    inner: Arc<dyn Store>,
}

impl PrefixStore {
    /// Creates a store that prepends `prefix/` to every key of `inner`.
    pub fn new(prefix: impl Into<String>, inner: Arc<dyn Store>) -> Self {
        Self {
            prefix: prefix.into(),
            inner,
        }
    }

    /// Returns the prefix without the slash that separates it from the keys.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the wrapped store.
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn join(&self, key: &str) -> String {
        join(&self.prefix, key)
    }

    fn with_joined<T>(&self, keys: &[&str], call: impl FnOnce(&[&str]) -> T) -> T {
        let joined: Vec<String> = keys.iter().map(|key| self.join(key)).collect();
        let joined: Vec<&str> = joined.iter().map(String::as_str).collect();
        call(&joined)
    }
}

impl Store for PrefixStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.inner.set(&self.join(key), value)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.inner.get(&self.join(key))
    }

    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        self.inner.get_within(&self.join(key), timeout)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.inner.add(&self.join(key), delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.inner.compare_set(&self.join(key), expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.with_joined(keys, |keys| self.inner.check(keys))
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.with_joined(keys, |keys| self.inner.wait(keys, timeout))
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.inner.delete_key(&self.join(key))
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.inner.num_keys()
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let names = self.inner.list_keys()?;
        Ok(names
            .iter()
            .filter_map(|name| strip(&self.prefix, name))
            .map(str::to_owned)
            .collect())
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.inner.append(&self.join(key), value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.with_joined(keys, |keys| self.inner.multi_get(keys))
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        let joined: Vec<String> = pairs.iter().map(|(key, _)| self.join(key)).collect();
        let pairs: Vec<(&str, &[u8])> = joined
            .iter()
            .zip(pairs)
            .map(|(key, (_, value))| (key.as_str(), *value))
            .collect();
        self.inner.multi_set(&pairs)
    }

    fn has_extended_api(&self) -> bool {
        self.inner.has_extended_api()
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.inner.queue_push(&self.join(key), value)
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        self.inner.queue_pop(&self.join(key), block)
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        self.inner.queue_len(&self.join(key))
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn connection(&self) -> Option<&dyn StoreConnection> {
        self.inner.connection()
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(Self {
            prefix: self.prefix.clone(),
            inner: Arc::from(self.inner.try_clone()?),
        }))
    }
}
