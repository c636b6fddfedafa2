//! The store in one file, shared live with other processes, PyTorch's among them.
//!
//! Each operation opens the file, locks it with flock, reads what was appended since the last time,
//! acts, and closes it again; nothing is kept open. The format and its replay are
//! [`rdzv_store_proto::journal`]. What differs from PyTorch, on the same file:
//!
//! * a record is written with one write; a record that somebody else left torn is skipped by
//!   readers and cut off by the next writer, where PyTorch reads permanently;
//! * a waiter sleeps until the file changes (see `watch.rs`) instead of polling 100 times a second;
//! * waiting for the lock ends with the timeout, with an error that says so;
//! * the last one out removes the file while it holds the lock, and whoever was waiting for that
//!   lock starts over with a new file;
//! * `append`, `multi_set` and `multi_get` happen in one go;
//! * a missing directory, or a file that is no store, is an error at once, and such a file is left
//!   as it was.

mod locked;
mod watch;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_store_proto::journal::{self, CLOSED_COUNT, Journal, OPEN_COUNT};
use rdzv_store_proto::number;

use self::locked::{Access, LockedFile, Seen};
use self::watch::Watch;
use crate::deadline::{DEFAULT_TIMEOUT, Deadline, SharedTimeout};
use crate::error::number_held;
use crate::{Store, StoreError, interrupt};

/// Least time that is allowed for getting the lock, however short the timeout: others hold it for
/// microseconds all the time.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Most time that closing a store may spend on getting the lock.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// A store in a file. Dropping the last of `world_size` objects removes the file.
pub struct FileStore {
    path: PathBuf,
    world_size: Option<u32>,
    timeout: SharedTimeout,
    seen: Mutex<Seen>,
    /// Whether this object is part of the file's count of open ones, and has to be counted out.
    is_counted: bool,
}

impl fmt::Debug for FileStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("FileStore")
            .field("path", &self.path)
            .field("world_size", &self.world_size)
            .finish_non_exhaustive()
    }
}

impl FileStore {
    /// Opens the store at `path`; the file is made if there is none, its directory is not.
    ///
    /// With a `world_size`, the file is removed when no object is open on it any more and at least
    /// that many have been closed; without one it stays. The timeout is 300 s
    /// ([`Store::set_timeout`]).
    pub fn open(path: impl AsRef<Path>, world_size: Option<u32>) -> Result<Self, StoreError> {
        Self::open_with(path.as_ref(), world_size, DEFAULT_TIMEOUT)
    }

    fn open_with(
        path: &Path,
        world_size: Option<u32>,
        timeout: Duration,
    ) -> Result<Self, StoreError> {
        let absolute = std::path::absolute(path).map_err(|source| StoreError::File {
            path: path.display().to_string(),
            operation: "find",
            source,
        })?;
        let mut store = Self {
            path: absolute,
            world_size,
            timeout: SharedTimeout::new(timeout),
            seen: Mutex::default(),
            is_counted: false,
        };
        store.count(OPEN_COUNT, 1)?;
        store.is_counted = true;
        Ok(store)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until a key holds something else than `known` (`None`: until it holds something), and
    /// returns that; `None` if it is gone.
    pub fn wait_for_change(
        &self,
        key: &str,
        known: Option<&[u8]>,
        timeout: Duration,
    ) -> Result<Option<Bytes>, StoreError> {
        self.wait_for(&[key], timeout, |journal, raw| {
            let held = journal.get(&raw[0]);
            (held.map(|held| &held[..]) != known).then(|| held.cloned())
        })
    }

    /// Locks the file for writing, up to date; runs `act` on it.
    fn write<T>(
        &self,
        act: impl FnOnce(&LockedFile<'_>, &mut Seen) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let deadline = Deadline::after(self.timeout().max(LOCK_TIMEOUT));
        let file = LockedFile::open(&self.path, Access::Write, &deadline)?;
        let file = file.expect("an open that creates the file does not miss it");
        // The mutex comes after the file's lock, never before: it is held for moments only.
        let mut seen = self.seen.lock();
        file.refresh(&mut seen)?;
        act(&file, &mut seen)
    }

    /// Brings the known state up to date; runs `inspect` on it.
    fn read<T>(&self, inspect: impl FnOnce(&Seen) -> T) -> Result<T, StoreError> {
        let deadline = Deadline::after(self.timeout().max(LOCK_TIMEOUT));
        self.read_within(&deadline, inspect)
    }

    fn read_within<T>(
        &self,
        deadline: &Deadline,
        inspect: impl FnOnce(&Seen) -> T,
    ) -> Result<T, StoreError> {
        let file = LockedFile::open(&self.path, Access::Read, deadline)?;
        let mut seen = self.seen.lock();
        match file {
            Some(file) => file.refresh(&mut seen)?,
            // Somebody removed it: an empty store, until the next write makes a new one.
            None => *seen = Seen::default(),
        }
        Ok(inspect(&seen))
    }

    /// Checks now and after every change until `take` yields something for the raw keys.
    fn wait_for<T>(
        &self,
        keys: &[&str],
        timeout: Duration,
        mut take: impl FnMut(&Journal, &[Vec<u8>]) -> Option<T>,
    ) -> Result<T, StoreError> {
        let deadline = Deadline::after(timeout);
        let raw: Vec<Vec<u8>> = keys.iter().map(|key| journal::user_key(key)).collect();
        let mut watch: Option<Watch> = None;
        loop {
            let lock_deadline = Deadline::after(
                deadline
                    .remaining()
                    .map_or(Duration::MAX, |left| left.max(LOCK_TIMEOUT)),
            );
            let (taken, identity, missing) = self.read_within(&lock_deadline, |seen| {
                let all = keys.iter().zip(&raw);
                let missing = all.filter(|(_, raw)| seen.journal.get(raw).is_none());
                let missing: Vec<String> = missing.map(|(key, _)| (*key).to_owned()).collect();
                (take(&seen.journal, &raw), seen.identity, missing)
            })?;
            if let Some(taken) = taken {
                return Ok(taken);
            }
            if deadline.has_passed() {
                return Err(StoreError::WaitTimeout {
                    store: self.path.display().to_string(),
                    keys: keys.iter().map(ToString::to_string).collect(),
                    missing,
                    elapsed: deadline.elapsed(),
                });
            }
            match &watch {
                Some(watch) if watch.is_on(identity) => {
                    watch.wait(interrupt::slice(deadline.remaining()));
                    // Whether a change ended the sleep is not known, so a check follows each.
                    interrupt::check("wait for", keys, deadline.elapsed())?;
                }
                // Check once more after the watch is set, for what came before it.
                _ => watch = Some(Watch::set(&self.path, identity)),
            }
        }
    }

    /// Adds to a counter, given by its raw key.
    fn count(&self, raw_key: &[u8], delta: i64) -> Result<i64, StoreError> {
        let key = String::from_utf8_lossy(raw_key.strip_prefix(b"/").unwrap_or(raw_key));
        self.write(|file, seen| {
            let sum = number_held(&key, seen.journal.get(raw_key))?.wrapping_add(delta);
            file.append(seen, raw_key, sum.to_string().as_bytes())?;
            Ok(sum)
        })
    }

    /// Counts this object out, and removes the file if it was the last one.
    fn close(&self) -> Result<(), StoreError> {
        let deadline = Deadline::after(self.timeout().clamp(LOCK_TIMEOUT, CLOSE_TIMEOUT));
        let Some(file) = LockedFile::open(&self.path, Access::WriteExisting, &deadline)? else {
            return Ok(());
        };
        let mut seen = self.seen.lock();
        file.refresh(&mut seen)?;
        let count = |seen: &Seen, raw_key: &[u8]| {
            let text = seen.journal.get(raw_key);
            text.and_then(|text| number::parse(text)).unwrap_or(0)
        };
        let closed = count(&seen, CLOSED_COUNT).saturating_add(1);
        let open = count(&seen, OPEN_COUNT).saturating_sub(1);
        file.append(&mut seen, CLOSED_COUNT, closed.to_string().as_bytes())?;
        file.append(&mut seen, OPEN_COUNT, open.to_string().as_bytes())?;
        match self.world_size {
            Some(world_size) if open == 0 && closed >= i64::from(world_size) => file.remove(),
            _ => Ok(()),
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        if !self.is_counted {
            return;
        }
        if let Err(error) = self.close() {
            tracing::warn!(%error, "could not count out of a store file; it will not be removed");
        }
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let raw_key = journal::user_key(key);
        self.write(|file, seen| file.append(seen, &raw_key, value))
    }

    fn get(&self, key: &str) -> Result<Bytes, StoreError> {
        self.get_within(key, None)
    }

    fn get_within(&self, key: &str, timeout: Option<Duration>) -> Result<Bytes, StoreError> {
        let timeout = timeout.unwrap_or_else(|| self.timeout());
        self.wait_for(&[key], timeout, |journal, raw| {
            journal.get(&raw[0]).cloned()
        })
    }

    fn add(&self, key: &str, delta: i64) -> Result<i64, StoreError> {
        self.count(&journal::user_key(key), delta)
    }

    fn compare_set(&self, key: &str, expected: &[u8], desired: &[u8]) -> Result<Bytes, StoreError> {
        let raw_key = journal::user_key(key);
        self.write(|file, seen| {
            match seen.journal.get(&raw_key) {
                Some(held) if held[..] != *expected => return Ok(held.clone()),
                None if !expected.is_empty() => return Ok(Bytes::copy_from_slice(expected)),
                _ => {}
            }
            file.append(seen, &raw_key, desired)?;
            Ok(Bytes::copy_from_slice(desired))
        })
    }

    fn check(&self, keys: &[&str]) -> Result<bool, StoreError> {
        let raw: Vec<Vec<u8>> = keys.iter().map(|key| journal::user_key(key)).collect();
        self.read(|seen| raw.iter().all(|key| seen.journal.get(key).is_some()))
    }

    fn wait(&self, keys: &[&str], timeout: Option<Duration>) -> Result<(), StoreError> {
        let timeout = timeout.unwrap_or_else(|| self.timeout());
        self.wait_for(keys, timeout, |journal, raw| {
            let all_there = raw.iter().all(|key| journal.get(key).is_some());
            all_there.then_some(())
        })
    }

    /// Always appends a record and returns true, as PyTorch does.
    fn delete_key(&self, key: &str) -> Result<bool, StoreError> {
        let raw_key = journal::deletion_of(key);
        self.write(|file, seen| file.append(seen, &raw_key, b""))?;
        Ok(true)
    }

    fn num_keys(&self) -> Result<u64, StoreError> {
        self.read(|seen| seen.journal.len() as u64)
    }

    fn list_keys(&self) -> Result<Vec<String>, StoreError> {
        let raw: Vec<Vec<u8>> =
            self.read(|seen| seen.journal.user_keys().map(<[u8]>::to_vec).collect())?;
        raw.into_iter()
            .map(|key| {
                String::from_utf8(key).map_err(|error| StoreError::Corrupt {
                    store: self.path.display().to_string(),
                    what: format!("a key that is not UTF-8: {:?}", error.as_bytes()),
                })
            })
            .collect()
    }

    fn append(&self, key: &str, value: &[u8]) -> Result<(), StoreError> {
        let raw_key = journal::user_key(key);
        self.write(|file, seen| {
            let held = seen.journal.get(&raw_key).cloned().unwrap_or_default();
            file.append(seen, &raw_key, &[&held, value].concat())
        })
    }

    /// All values as they are at one moment, when all of them are there.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.wait_for(keys, self.timeout(), |journal, raw| {
            raw.iter().map(|key| journal.get(key).cloned()).collect()
        })
    }

    /// All values in one go; no reader sees some of them without the others.
    fn multi_set(&self, pairs: &[(&str, &[u8])]) -> Result<(), StoreError> {
        self.write(|file, seen| {
            pairs
                .iter()
                .try_for_each(|(key, value)| file.append(seen, &journal::user_key(key), value))
        })
    }

    fn timeout(&self) -> Duration {
        self.timeout.get()
    }

    fn set_timeout(&self, timeout: Duration) {
        self.timeout.set(timeout);
    }

    fn try_clone(&self) -> Result<Box<dyn Store>, StoreError> {
        let clone = Self::open_with(&self.path, self.world_size, self.timeout())?;
        Ok(Box::new(clone))
    }
}
