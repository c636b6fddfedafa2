//! Stores with which a test can watch each call before it is made.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rdzv_store::{Store, StoreError};

/// Hook that gets the key of each call; `true` if the user is still alive.
type Alive = dyn Fn(&str) -> bool + Send + Sync;

/// A store whose user may be delayed at a call, or die before it.
/// After its death this call and all later calls fail.
pub(crate) struct Watched {
    inner: Box<dyn Store>,
    alive: Arc<Alive>,
    died: Arc<AtomicBool>,
}

impl fmt::Debug for Watched {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Watched({:?})", self.inner)
    }
}

impl Watched {
    pub(crate) fn new(
        store: &Arc<dyn Store>,
        alive: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            inner: store.try_clone().unwrap(),
            alive: Arc::new(alive),
            died: Arc::default(),
        })
    }

    /// Creates a store whose user dies before a call, counted over all clones.
    pub(crate) fn dying_before(call: i64, store: &Arc<dyn Store>) -> Arc<Self> {
        let left = AtomicI64::new(call);
        Self::new(store, move |_| left.fetch_sub(1, Ordering::SeqCst) > 0)
    }

    /// `true` if the user has died.
    pub(crate) fn has_died(&self) -> bool {
        self.died.load(Ordering::SeqCst)
    }

    fn look(&self, key: &str) -> Result<&dyn Store, StoreError> {
        if (self.alive)(key) {
            return Ok(&*self.inner);
        }
        self.died.store(true, Ordering::SeqCst);
        Err(StoreError::Argument("its user has died".to_owned()))
    }
}

impl Store for Watched {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.look(key)?.set(key, value)
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.look(key)?.get(key)
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.look(key)?.add(key, delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        self.look(key)?.compare_set(key, expected, desired)
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        self.look(keys[0])?.check(keys)
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        self.look(keys[0])?.wait(keys, timeout)
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        self.look(key)?.delete_key(key)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.look("")?.num_keys()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        self.look(key)?.append(key, value)
    }

    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.look(keys[0])?.multi_get(keys)
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.inner.set_timeout(timeout);
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(Self {
            inner: self.inner.try_clone()?,
            alive: Arc::clone(&self.alive),
            died: Arc::clone(&self.died),
        }))
    }
}
