//! Ranks as threads of the test, on loopback.

#![allow(dead_code, reason = "not every test file uses everything")]

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rdzv_collective::{CollectiveError, GroupOptions, ProcessGroup};
use rdzv_store::{Store, StoreError};

/// Far more than any of these tests takes.
pub const LONG: Duration = Duration::from_secs(60);

/// A store within this process.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    shared: Arc<(Mutex<BTreeMap<String, Bytes>>, Condvar)>,
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let value = Bytes::copy_from_slice(value);
        self.shared.0.lock().unwrap().insert(key.to_owned(), value);
        self.shared.1.notify_all();
        Ok(())
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.wait(&[key], None)?;
        Ok(self.shared.0.lock().unwrap()[key].clone())
    }

    fn add(&self, _key: &str, _delta: i64) -> Result<i64, StoreError> {
        unreachable!("a process group does not count")
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        let mut map = self.shared.0.lock().unwrap();
        let held = map.entry(key.to_owned()).or_default();
        if held[..] == *expected {
            *held = Bytes::copy_from_slice(desired);
            self.shared.1.notify_all();
        }
        Ok(held.clone())
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let map = self.shared.0.lock().unwrap();
        Ok(keys.iter().all(|key| map.contains_key(*key)))
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let started = Instant::now();
        let deadline = started + timeout.unwrap_or(LONG);
        let mut map = self.shared.0.lock().unwrap();
        loop {
            let missing: Vec<String> = keys
                .iter()
                .filter(|key| !map.contains_key(**key))
                .map(|key| (*key).to_owned())
                .collect();
            let left = deadline.saturating_duration_since(Instant::now());
            if missing.is_empty() {
                return Ok(());
            } else if left.is_zero() {
                return Err(StoreError::WaitTimeout {
                    store: "memory".to_owned(),
                    keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                    missing,
                    elapsed: started.elapsed(),
                });
            }
            map = self.shared.1.wait_timeout(map, left).unwrap().0;
        }
    }

    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.shared.0.lock().unwrap().remove(key).is_some())
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        Ok(self.shared.0.lock().unwrap().len() as u64)
    }

    fn timeout(&self) -> Duration {
        LONG
    }

    fn set_timeout(&self, _timeout: Duration) {}

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        Ok(Box::new(self.clone()))
    }
}

/// A store of its own for a test.
pub fn store() -> MemoryStore {
    MemoryStore::default()
}

pub fn options(timeout: Duration) -> GroupOptions {
    GroupOptions {
        timeout,
        address: Some(Ipv4Addr::LOCALHOST.into()),
        ..GroupOptions::default()
    }
}

pub fn join(
    store: &dyn Store,
    rank: u32,
    world_size: u32,
    timeout: Duration,
) -> Result<ProcessGroup, CollectiveError> {
    ProcessGroup::with_options(store, rank, world_size, &options(timeout))
}

/// Runs all ranks of a group as threads and returns their results in the order of the ranks.
pub fn run<R: Send>(
    world_size: u32,
    timeout: Duration,
    worker: impl Fn(ProcessGroup) -> R + Sync,
) -> Vec<R> {
    let store = store();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (store, worker) = (&store, &worker);
                scope.spawn(move || worker(join(store, rank, world_size, timeout).unwrap()))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
