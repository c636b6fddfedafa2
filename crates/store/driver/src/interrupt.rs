//! Interruption of a blocking call by its own thread.
//!
//! A language with its own signal handlers must run them while a thread waits in this library. To
//! allow this, a caller can supply a check function, which runs about ten times a second while a
//! call blocks. [`slice()`], [`is_wanted`] and [`check`] are public for stores in other crates.

use std::cell::Cell;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_lock::{LimitedGuard, LimitedMutex};

use crate::StoreError;
use crate::deadline::Deadline;

/// Maximum time between two checks.
const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    /// Check function of the call that is in progress on this thread.
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Runs `call`, and runs `check` regularly while its store operations block.
///
/// `check` runs about every 100 ms while an operation blocks. Once it returns `true`, the
/// operation fails with [`StoreError::Interrupted`]. An interrupted wait leaves the store
/// unchanged. An operation that requires an immediate reply loses its connection, because it is
/// unknown whether the store executed it.
pub fn interruptible<T>(check: fn() -> bool, call: impl FnOnce() -> T) -> T {
    struct Restore(Option<fn() -> bool>);
    impl Drop for Restore {
        fn drop(&mut self) {
            CHECK.set(self.0);
        }
    }
    let _restore = Restore(CHECK.replace(Some(check)));
    call()
}

/// Returns how long a wait with `left` remaining may last until the next check.
/// `None` means that the wait has no limit.
pub fn slice(left: Option<Duration>) -> Option<Duration> {
    match CHECK.get() {
        None => left,
        Some(_) => Some(left.map_or(SLICE, |left| left.min(SLICE))),
    }
}

/// Returns `true` if the call in progress on this thread was interrupted.
pub fn is_wanted() -> bool {
    CHECK.get().is_some_and(|check| check())
}

/// Returns an error if the call on this thread was interrupted.
/// The error names `operation`, `keys` and `elapsed`.
///
/// # Errors
///
/// Returns [`StoreError::Interrupted`] if the call was interrupted.
pub fn check(operation: &'static str, keys: &[&str], elapsed: Duration) -> Result<(), StoreError> {
    if is_wanted() {
        Err(StoreError::Interrupted {
            operation,
            key: keys.join(", "),
            elapsed,
        })
    } else {
        Ok(())
    }
}

/// Sleeps, and returns an error if the call on this thread was interrupted.
///
/// # Errors
///
/// Returns [`StoreError::Interrupted`] if the call was interrupted.
pub(crate) fn sleep(
    pause: Duration,
    operation: &'static str,
    keys: &[&str],
    deadline: &Deadline,
) -> Result<(), StoreError> {
    let start = Instant::now();
    loop {
        check(operation, keys, deadline.elapsed())?;
        let left = pause.saturating_sub(start.elapsed());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(slice(Some(left)).unwrap_or(left));
    }
}

/// Runs a system call that blocks, on a separate thread if necessary.
///
/// The separate thread is necessary if the call on this thread can be interrupted.
/// After an interruption, the other thread continues until the system call ends.
///
/// # Errors
///
/// Returns [`io::ErrorKind::Interrupted`] if the call was interrupted.
pub(crate) fn beside<T: Send + 'static>(
    call: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    if CHECK.get().is_none() {
        return call();
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let name = "rdzv-connect".to_owned();
    let send = move || {
        // After an interruption nothing receives the result.
        let _ = sender.send(call());
    };
    thread::Builder::new().name(name).spawn(send)?;
    loop {
        match receiver.recv_timeout(SLICE) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Timeout) if !is_wanted() => {}
            Err(_) => return Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

/// Locks `mutex`, which another thread may hold while it waits.
pub(crate) fn lock<'a, T>(
    mutex: &'a LimitedMutex<T>,
    operation: &'static str,
    key: &str,
) -> Result<LimitedGuard<'a, T>, StoreError> {
    if CHECK.get().is_none() {
        return Ok(mutex.lock());
    }
    let start = Instant::now();
    loop {
        if let Some(guard) = mutex.try_lock_for(SLICE) {
            return Ok(guard);
        }
        check(operation, &[key], start.elapsed())?;
    }
}
