//! A store in one file, shared with other processes, including PyTorch's.
//!
//! Each operation opens the file, locks it with `flock`, and reads the records that were appended
//! since the previous operation. Then it performs its work and closes the file, so no descriptor
//! stays open. [`rdzv_store_proto::journal`] describes the format and how it is replayed. PyTorch's
//! store behaves differently on the same file:
//!
//! * A record is written with one `write` call. Readers skip a torn record that another writer
//!   left, and the next writer truncates it. PyTorch retries such a read without a limit.
//! * A waiter sleeps until the file changes (see `watch.rs`). PyTorch polls 100 times a second.
//! * A wait for the lock ends after the timeout, but at the earliest after 1 s, with an error that
//!   names the lock.
//! * With a world size, the last store object removes the file while it holds the lock. Processes
//!   that were waiting for the lock then continue with a new file.
//! * `append`, `multi_set` and `multi_get` are atomic, unless a `multi_set` fails or its process
//!   dies before it has written all records.
//! * A missing directory, or a file that is not a store, is reported as an error immediately. The
//!   file is not changed.

mod locked;
mod watch;

use std::fmt;
use std::io;
use std::os::unix::fs::FileTypeExt as _;
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

/// Minimum time to wait for the lock, even if the timeout is shorter.
/// Other processes normally hold the lock only for microseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum time that closing a store may spend waiting for the lock.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Describes a file that no store can use; `None` for other files.
///
/// A directory needs no description, because the system's own error names it.
fn special(path: &Path) -> Option<&'static str> {
    let kind = path.metadata().ok()?.file_type();
    if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else if kind.is_char_device() || kind.is_block_device() {
        Some("a device")
    } else {
        None
    }
}

/// Store in a file.
/// With a world size, the last of its objects removes the file; see [`FileStore::open`].
pub struct FileStore {
    path: PathBuf,
    world_size: Option<u32>,
    timeout: SharedTimeout,
    seen: Mutex<Seen>,
    /// `true` if the file's count of open objects includes this one.
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
    /// Opens the store at `path` and creates the file if it does not exist.
    ///
    /// The directory must exist. If `world_size` is `None`, this object never removes the file.
    /// Otherwise, this object removes the file when it is dropped as the last object that has the
    /// file open, if at least `world_size` objects were closed. The timeout is 300 s;
    /// [`Store::set_timeout`] changes it.
    ///
    /// # Errors
    ///
    /// [`StoreError::File`] if the file cannot be opened, created or locked, and
    /// [`StoreError::Corrupt`] if it is not the file of a store.
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
        if let Some(kind) = special(&absolute) {
            let reason = format!("it is not a regular file, but {kind}");
            return Err(StoreError::File {
                path: absolute.display().to_string(),
                operation: "open",
                source: io::Error::new(io::ErrorKind::InvalidInput, reason),
            });
        }
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

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for a value that differs from `known`, and returns it.
    /// A `known` of `None` means that the key does not exist. Returns `None` if the key has been
    /// removed.
    ///
    /// # Errors
    ///
    /// [`StoreError::WaitTimeout`] if the value stays the same, and [`StoreError::File`] if the
    /// file cannot be read.
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

    /// Locks the file for writing, reads new records, and calls `act`.
    fn write<T>(
        &self,
        act: impl FnOnce(&LockedFile<'_>, &mut Seen) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let deadline = Deadline::after(self.timeout().max(LOCK_TIMEOUT));
        let file = LockedFile::open(&self.path, Access::Write, &deadline)?;
        let file = file.expect("an open that creates the file does not miss it");
        // The mutex is acquired after the file's lock, never before, and held only briefly.
        let mut seen = self.seen.lock();
        file.refresh(&mut seen)?;
        act(&file, &mut seen)
    }

    /// Reads new records, and calls `inspect` with the known state.
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
            // Another process has removed the file. The store is empty until the next write creates
            // a new file.
            None => *seen = Seen::default(),
        }
        Ok(inspect(&seen))
    }

    /// Checks now and after every change until `take` returns a value.
    /// `take` receives the raw keys.
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
                    // The sleep may have ended without a change, so the keys are checked after each
                    // sleep.
                    interrupt::check("wait for", keys, deadline.elapsed())?;
                }
                // Checks once more after the watch is set, for earlier changes.
                _ => watch = Some(Watch::set(&self.path, identity)),
            }
        }
    }

    /// Adds to a counter with this raw key.
    fn count(&self, raw_key: &[u8], delta: i64) -> Result<i64, StoreError> {
        let key = String::from_utf8_lossy(raw_key.strip_prefix(b"/").unwrap_or(raw_key));
        self.write(|file, seen| {
            let sum = number_held(&key, seen.journal.get(raw_key))?.wrapping_add(delta);
            file.append(seen, raw_key, sum.to_string().as_bytes())?;
            Ok(sum)
        })
    }

    /// Subtracts this object from the count of open objects.
    /// May remove the file; see [`FileStore::open`].
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
            tracing::warn!(
                %error,
                "cannot unregister from a store file; the file will not be removed"
            );
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

    /// Appends a record and always returns `true`, as PyTorch does.
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
                    what: format!(
                        "it contains a key that is not UTF-8: {:?}",
                        error.as_bytes()
                    ),
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

    /// Waits until all keys exist, and returns their values at one point in time.
    fn multi_get(&self, keys: &[&str]) -> Result<Vec<Bytes>, StoreError> {
        self.wait_for(keys, self.timeout(), |journal, raw| {
            raw.iter().map(|key| journal.get(key).cloned()).collect()
        })
    }

    /// Sets all values under one lock, so that no reader sees only some of them.
    ///
    /// If a write fails or the process dies, the values written until then remain.
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
