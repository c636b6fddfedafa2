//! The locked file: reading new records, appending, removing the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rdzv_store_proto::journal::{self, Journal, Tail};

use crate::deadline::Deadline;
use crate::{StoreError, interrupt};

/// Maximum number of bytes per read of the file.
const READ_AT_ONCE: u64 = 1 << 20;

/// Mode of opening and locking the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Read, with the shared lock.
    Read,
    /// Write, with the exclusive lock; the file is created if it does not exist.
    Write,
    /// Write, with the exclusive lock, if the file exists.
    WriteExisting,
}

/// Identity of the file at a path: device and inode.
pub(super) type Identity = (u64, u64);

/// The state of the file as one store object knows it.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The file that was read; `None` if there was none.
    pub(super) identity: Option<Identity>,
    /// Content of the file that has been read.
    pub(super) journal: Journal,
}

/// The file, open and locked until dropped.
#[derive(Debug)]
pub(super) struct LockedFile<'a> {
    path: &'a Path,
    file: File,
}

impl<'a> LockedFile<'a> {
    /// Opens and locks the file.
    /// `None` if the file does not exist and `access` does not create it.
    pub(super) fn open(
        path: &'a Path,
        access: Access,
        deadline: &Deadline,
    ) -> Result<Option<Self>, StoreError> {
        loop {
            let mut options = OpenOptions::new();
            options.read(true).write(access != Access::Read);
            options.create(access == Access::Write).mode(0o644);
            let file = match options.open(path) {
                Ok(file) => file,
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound && access != Access::Write =>
                {
                    return Ok(None);
                }
                Err(source) => return Err(failed(path, "open", source)),
            };
            let shared = access == Access::Read;
            let file = lock(file, shared, deadline).map_err(|source| match source.kind() {
                io::ErrorKind::Interrupted => StoreError::Interrupted {
                    operation: "lock the store file",
                    key: String::new(),
                    elapsed: deadline.elapsed(),
                },
                _ => failed(path, "lock", source),
            })?;
            let locked = Self { path, file };
            // The last store object may have removed the file while this one waited for the lock.
            if locked.metadata()?.nlink() > 0 {
                return Ok(Some(locked));
            }
        }
    }

    /// Reads the records that were appended since the last call.
    pub(super) fn refresh(&self, seen: &mut Seen) -> Result<(), StoreError> {
        let metadata = self.metadata()?;
        let identity = Some((metadata.dev(), metadata.ino()));
        if seen.identity != identity || metadata.len() < seen.journal.offset() {
            *seen = Seen {
                identity,
                journal: Journal::default(),
            };
        }
        let mut position = seen.journal.offset();
        let mut unread = metadata.len() - position;
        let mut pending = Vec::new();
        while unread > 0 {
            let old = pending.len();
            let chunk = unread.min(READ_AT_ONCE);
            pending.resize(old + chunk as usize, 0);
            let read = self
                .file
                .read_at(&mut pending[old..], position)
                .map_err(|source| failed(self.path, "read", source))?;
            if read == 0 {
                break;
            }
            pending.truncate(old + read);
            position += read as u64;
            unread -= read as u64;
            let replayed = seen.journal.replay(&pending);
            pending.drain(..replayed.consumed);
            if replayed.tail == Tail::Foreign {
                return Err(StoreError::Corrupt {
                    store: self.path.display().to_string(),
                    what: format!(
                        "the bytes at offset {} are not a record of a store; the file was not \
                         changed",
                        seen.journal.offset()
                    ),
                });
            }
        }
        Ok(())
    }

    /// Appends one record with one write. `seen` must be up to date.
    pub(super) fn append(
        &self,
        seen: &mut Seen,
        raw_key: &[u8],
        value: &[u8],
    ) -> Result<(), StoreError> {
        let record = journal::encode(raw_key, value)
            .map_err(|error| StoreError::Argument(error.to_string()))?;
        let end = seen.journal.offset();
        // Bytes after the last whole record were left by a writer that died. A writer holds the
        // lock for the whole record, and this process holds the lock now. A record that is appended
        // after those bytes would become part of the broken record.
        if self.metadata()?.len() > end {
            self.cut(end)?;
        }
        if let Err(source) = self.file.write_all_at(&record, end) {
            self.cut(end)?;
            return Err(failed(self.path, "append to", source));
        }
        seen.journal.replay(&record);
        Ok(())
    }

    /// Removes the file, unless the path now names another file.
    pub(super) fn remove(&self) -> Result<(), StoreError> {
        let ours = self.metadata()?;
        match std::fs::metadata(self.path) {
            Ok(now) if (now.dev(), now.ino()) == (ours.dev(), ours.ino()) => {
                std::fs::remove_file(self.path)
                    .map_err(|source| failed(self.path, "remove", source))
            }
            _ => Ok(()),
        }
    }

    fn cut(&self, length: u64) -> Result<(), StoreError> {
        self.file
            .set_len(length)
            .map_err(|source| failed(self.path, "remove an incomplete record from", source))
    }

    fn metadata(&self) -> Result<std::fs::Metadata, StoreError> {
        self.file
            .metadata()
            .map_err(|source| failed(self.path, "read the metadata of", source))
    }
}

fn failed(path: &Path, operation: &'static str, source: io::Error) -> StoreError {
    StoreError::File {
        path: path.display().to_string(),
        operation,
        source,
    }
}

/// Acquires the lock, and waits for it until the deadline.
///
/// flock has no timeout, and repeated attempts would starve among processes that queue for the
/// lock. A separate thread therefore queues for the lock. If the wait times out or is interrupted,
/// that thread stays until the holder releases the lock. The thread then acquires the lock, finds
/// that no call waits for it, and closes the file.
fn lock(file: File, shared: bool, deadline: &Deadline) -> io::Result<File> {
    loop {
        let tried = if shared {
            file.try_lock_shared()
        } else {
            file.try_lock()
        };
        match tried {
            Ok(()) => return Ok(file),
            // On a network file system, a signal may interrupt the call.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) => break,
        }
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("rdzv-file-lock".to_owned())
        .spawn(move || {
            let locked = loop {
                let waited = if shared {
                    file.lock_shared()
                } else {
                    file.lock()
                };
                match waited {
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    waited => break waited.map(|()| file),
                }
            };
            let _nobody_waits_any_more = sender.send(locked);
        })?;
    loop {
        let left = interrupt::slice(deadline.remaining()).unwrap_or(Duration::MAX);
        match receiver.recv_timeout(left) {
            Ok(locked) => return locked,
            Err(_) if deadline.has_passed() => break,
            Err(_) if interrupt::is_wanted() => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Err(_) => {}
        }
    }
    Err(io::Error::new(
        io::ErrorKind::TimedOut,
        format!(
            "another process has held the file's lock for {} ms (a PyTorch process does this when \
             it reads an incomplete record; find that process with `fuser` and kill it)",
            deadline.elapsed().as_millis()
        ),
    ))
}
