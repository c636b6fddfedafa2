//! The trait that all stores implement: PyTorch's base API.

use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::StoreError;

/// A function that ends the calls of a store object from another thread.
pub type Breaker = Arc<dyn Fn() + Send + Sync>;

/// A shared map from keys to bytes, with waiting, counting and queues.
///
/// Every method may be called from several threads. Unless stated otherwise, semantics are those of
/// `torch.distributed.Store`. A `timeout` of `None` means [`Store::timeout`], zero means "check
/// once", and a value too big for the clock means "no limit". A `Box<dyn Store>` is a `Box<dyn
/// Any>` too, so that a caller can find out which store it is.
pub trait Store: Any + Send + Sync + Debug {
    /// Stores a value, and wakes the waiters of the key.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Returns the value of a key; waits for the key up to the store's timeout.
    fn get(&self, key: &str) -> Result<Bytes, StoreError>;

    /// Returns the value of a key; waits for the key up to `timeout`.
    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        self.wait(&[key], timeout)?;
        self.get(key)
    }

    /// Adds to the decimal number under the key, and returns the sum.
    /// An absent key counts as 0.
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// Stores `desired` if the key holds `expected`, and returns the new value.
    /// If the value differs, it stays and is returned. An absent key matches an empty `expected`.
    /// For an absent key and a non-empty `expected` nothing is stored and `expected` is returned,
    /// as in PyTorch.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError>;

    /// `true` if all keys exist.
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// Waits until all keys exist.
    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError>;

    /// Removes a key; `true` if it existed (always `true` for a file store).
    fn delete_key(&self, key: &str) -> Result<bool, StoreError>;

    /// Returns the number of keys in the store, including its own bookkeeping keys.
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// Returns all keys, in no order.
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        unsupported(self, "listKeys")
    }

    /// Appends to the value of a key, or creates it.
    ///
    /// PyTorch has a general form on top of `compare_set`; this trait has none. `compare_set` also
    /// reports "stored" if another client has just stored the same bytes. So one of two equal
    /// appends would be lost.
    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Returns the values of several keys, in order; waits for all of them.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Stores several values.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        pairs
            .iter()
            .try_for_each(|(key, value)| self.set(key, value))
    }

    /// `true` if `append`, `multi_get` and `multi_set` are single operations here.
    fn has_extended_api(&self) -> bool {
        false
    }

    /// Appends a value to a queue. Queues and keys have separate name spaces.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let _ = (key, value);
        unsupported(self, "queue")
    }

    /// Takes the first value of a queue.
    /// If the queue is empty, waits if `block`, and otherwise returns [`StoreError::QueueEmpty`].
    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        let _ = (key, block);
        unsupported(self, "queue")
    }

    /// Returns the number of values in a queue.
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let _ = key;
        unsupported(self, "queue")
    }

    /// Waits until `world_size` callers have come.
    /// A key can be used for one barrier.
    ///
    /// This general form uses PyTorch's keys, so PyTorch's members and ours can share a barrier: a
    /// counter `key/num_members` and a flag `key/last_member`.
    fn barrier(
        &self,
        key: &str,
        world_size: u32,
        timeout: Option<Duration>,
    ) -> Result<(), StoreError> {
        let counter = format!("{key}/num_members");
        let flag = format!("{key}/last_member");
        let world_size = i64::from(world_size);
        if self.add(&counter, 1)? >= world_size {
            self.set(&flag, b"1")?;
        }
        match self.wait(&[&flag], timeout) {
            Err(StoreError::WaitTimeout { store, elapsed, .. }) => {
                Err(StoreError::BarrierTimeout {
                    store,
                    key: key.to_owned(),
                    arrived: self.add(&counter, 0)?,
                    world_size,
                    elapsed,
                })
            }
            other => other,
        }
    }

    /// Returns the timeout of waiting operations (default 300 s).
    fn timeout(&self) -> Duration;

    /// Changes [`Store::timeout`]; whole milliseconds.
    fn set_timeout(&self, timeout: Duration);

    /// Returns a function that ends the calls on this object.
    /// The function ends the current call in another thread, and makes all later calls fail. Other
    /// handles to the same data are not affected. `None` if calls cannot be ended.
    fn breaker(&self) -> Option<Breaker> {
        None
    }

    /// Returns this host's address for processes that share the store.
    /// `None` if it is unknown, as for a store without a connection.
    fn address_of_this_host(&self) -> Option<IpAddr> {
        None
    }

    /// Returns a second handle to the same data, with a separate connection.
    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError>;
}

fn unsupported<T>(store: &(impl Debug + ?Sized), operation: &'static str) -> Result<T, StoreError> {
    let store = format!("{store:?}");
    Err(StoreError::Unsupported { operation, store })
}
