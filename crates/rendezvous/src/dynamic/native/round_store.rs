//! The agents' store of a round: the coordinator's own store, connected to when it is first used. With
//! native agents only, it is used for little more than the exit barrier, if at all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rdzv_store::{Breaker, Store, StoreError, TcpStore, TcpStoreOptions};

/// A store that is connected to when it is first used.
#[derive(Debug)]
pub(super) struct RoundStore {
    address: SocketAddr,
    timeout: Mutex<Duration>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    store: OnceLock<TcpStore>,
    /// One thread connects, the others wait.
    connecting: Mutex<()>,
    broken: AtomicBool,
}

impl RoundStore {
    pub(super) fn new(address: SocketAddr, timeout: Duration) -> Self {
        Self {
            address,
            timeout: Mutex::new(timeout),
            shared: Arc::default(),
        }
    }

    fn store(&self) -> Result<&TcpStore, StoreError> {
        if let Some(store) = self.shared.store.get() {
            return Ok(store);
        }
        let _one_at_a_time = self
            .shared
            .connecting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(store) = self.shared.store.get() {
            return Ok(store);
        }
        if self.shared.broken.load(Ordering::Acquire) {
            return Err(StoreError::Argument(format!(
                "the store at {} was broken off before its first use",
                self.address
            )));
        }
        let host = self.address.ip().to_string();
        let store = TcpStore::connect(TcpStoreOptions {
            timeout: self.timeout(),
            wait_for_workers: false,
            ..TcpStoreOptions::new(host, self.address.port())
        })?;
        Ok(self.shared.store.get_or_init(|| store))
    }
}

impl Store for RoundStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.store()?.set(key, value)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.store()?.get(key)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.store()?.add(key, delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.store()?.compare_set(key, expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.store()?.check(keys)
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.store()?.wait(keys, timeout)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.store()?.delete_key(key)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.store()?.num_keys()
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        self.store()?.list_keys()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.store()?.append(key, value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.store()?.multi_get(keys)
    }

    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        self.store()?.multi_set(pairs)
    }

    fn has_extended_api(&self) -> bool {
        true
    }

    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.store()?.queue_push(key, value)
    }

    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        self.store()?.queue_pop(key, block)
    }

    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        self.store()?.queue_len(key)
    }

    fn barrier(
        &self,
        key: &str,
        world_size: u32,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        self.store()?.barrier(key, world_size, timeout)
    }

    fn timeout(&self) -> Duration {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_timeout(&self, timeout: Duration) {
        *self.timeout.lock().unwrap_or_else(PoisonError::into_inner) = timeout;
        if let Some(store) = self.shared.store.get() {
            store.set_timeout(timeout);
        }
    }

    fn breaker(&self) -> Option<Breaker> {
        let shared = Arc::clone(&self.shared);
        Some(Arc::new(move || {
            shared.broken.store(true, Ordering::Release);
            if let Some(end) = shared.store.get().and_then(Store::breaker) {
                end();
            }
        }))
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        self.store()?.try_clone()
    }
}
