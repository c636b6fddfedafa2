//! Trait that all stores implement, modelled on PyTorch's base API.

use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::StoreError;

/// Function that aborts the calls on a store object from another thread.
pub type Breaker = Arc<dyn Fn() + Send + Sync>;

/// Shared map from keys to bytes, with waiting, counters and queues.
///
/// Every method may be called from several threads at the same time. Unless stated otherwise, the
/// semantics are those of `torch.distributed.Store`. A `timeout` of `None` uses [`Store::timeout`],
/// and a timeout of zero checks once. A timeout that is too long for the clock has no limit.
///
/// # Errors
///
/// Methods return [`StoreError`] if the store cannot be reached or refuses the operation. Methods
/// that wait also return it when their time limit has passed.
#[expect(
    clippy::missing_errors_doc,
    reason = "the errors of all methods are above"
)]
pub trait Store: Send + Sync + Debug {
    /// Stores a value under a key, and wakes all callers that wait for the key.
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Returns the value of a key, waiting for it for up to the store's timeout.
    fn get(&self, key: &str) -> Result<Bytes, StoreError>;

    /// Returns the value of a key, waiting for it for up to `timeout`.
    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        self.wait(&[key], timeout)?;
        self.get(key)
    }

    /// Adds `delta` to the decimal number under a key, and returns the sum.
    /// An absent key counts as 0.
    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError>;

    /// Stores `desired` if the current value equals `expected`.
    /// Returns `desired` in this case, and the unchanged current value otherwise. An absent key
    /// matches an empty `expected`. If the key is absent and `expected` is not empty, nothing is
    /// stored and `expected` is returned, as in PyTorch.
    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError>;

    /// Returns `true` if all keys exist.
    fn check(&self, keys: &[&str]) -> Result<bool, StoreError>;

    /// Waits until all keys exist.
    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError>;

    /// Removes a key and returns `true` if it existed.
    /// A file store always returns `true`.
    fn delete_key(&self, key: &str) -> Result<bool, StoreError>;

    /// Returns the number of keys in the store, including internal keys.
    fn num_keys(&self) -> Result<u64, StoreError>;

    /// Returns all keys except internal ones, in no particular order.
    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        unsupported(self, "listKeys")
    }

    /// Appends to the value of a key, or creates the key.
    ///
    /// PyTorch implements a general form on top of `compare_set`; this trait does not.
    /// `compare_set` also reports success if another client has just stored the same bytes, so one
    /// of two equal appends would be lost.
    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError>;

    /// Returns the values of several keys in order, waiting until all exist.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Stores several values under their keys.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        pairs
            .iter()
            .try_for_each(|(key, value)| self.set(key, value))
    }

    /// Returns `true` if the store supports the extended calls directly.
    ///
    /// These calls are `append`, `multi_get` and `multi_set`. `false` for a file store, as in
    /// PyTorch.
    fn has_extended_api(&self) -> bool {
        false
    }

    /// Appends a value to a queue. Queues and keys have separate namespaces.
    fn queue_push(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let _ = (key, value);
        unsupported(self, "queue")
    }

    /// Removes and returns the first value of a queue.
    /// If the queue is empty, waits for a value if `block` is `true`, and otherwise returns
    /// [`StoreError::QueueEmpty`].
    fn queue_pop(&self, key: &str, block: bool) -> Result<Bytes, StoreError> {
        let _ = (key, block);
        unsupported(self, "queue")
    }

    /// Returns the number of values in a queue.
    fn queue_len(&self, key: &str) -> Result<u64, StoreError> {
        let _ = key;
        unsupported(self, "queue")
    }

    /// Waits until `world_size` callers have arrived at the barrier.
    /// Each key can be used for only one barrier. A caller that stops waiting is no longer counted,
    /// so that it can call again. PyTorch's own clients remain counted.
    ///
    /// This general form uses PyTorch's keys, so PyTorch and rdzv members can share a barrier. The
    /// keys are a counter `key/num_members` and a flag `key/last_member`.
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
        let ended = self.wait(&[&flag], timeout);
        if !matches!(
            ended,
            Err(StoreError::WaitTimeout { .. } | StoreError::Interrupted { .. })
        ) {
            return ended;
        }
        let arrived = self.add(&counter, -1)? + 1;
        match ended {
            // The last member came at the same time.
            Err(StoreError::WaitTimeout { .. }) if self.check(&[&flag])? => Ok(()),
            Err(StoreError::WaitTimeout { store, elapsed, .. }) => {
                Err(StoreError::BarrierTimeout {
                    store,
                    key: key.to_owned(),
                    arrived,
                    world_size,
                    elapsed,
                })
            }
            other => other,
        }
    }

    /// Returns the default timeout for operations that wait.
    /// It is 300 s, unless the caller has specified another timeout.
    fn timeout(&self) -> Duration;

    /// Sets [`Store::timeout`], truncated to whole milliseconds.
    fn set_timeout(&self, timeout: Duration);

    /// Returns the connection of this handle; `None` if it has no connection.
    fn connection(&self) -> Option<&dyn StoreConnection> {
        None
    }

    /// Creates a second handle to the same data, with its own connection if any.
    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError>;
}

/// Connection behind a handle to a store.
///
/// The process groups, RPC and the rendezvous of rdzv use it if it exists. Both methods are
/// optional.
pub trait StoreConnection {
    /// Returns a function that aborts the calls on this handle.
    /// The function aborts a call that is in progress in another thread, and makes all later calls
    /// fail. Other handles to the same data are not affected. Returns `None` if calls cannot be
    /// aborted.
    fn breaker(&self) -> Option<Breaker> {
        None
    }

    /// Returns the address of this host for processes that share the store.
    /// Returns `None` if the address is unknown.
    fn address_of_this_host(&self) -> Option<IpAddr> {
        None
    }
}

fn unsupported<T>(store: &(impl Debug + ?Sized), operation: &'static str) -> Result<T, StoreError> {
    let store = format!("{store:?}");
    Err(StoreError::Unsupported { operation, store })
}
