//! Interruption of a blocking call by its own thread.
//!
//! A language with its own signal handlers has to run them while a thread waits here. For that, a
//! call can be given a check, which is called about ten times a second while the call blocks.
//! [`slice()`], [`is_wanted`] and [`check`] are for stores of other crates.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rdzv_lock::{LimitedGuard, LimitedMutex};

use crate::StoreError;

/// Longest time between two checks.
const SLICE: Duration = Duration::from_millis(100);

thread_local! {
    /// The check of the call that this thread is in.
    static CHECK: Cell<Option<fn() -> bool>> = const { Cell::new(None) };
}

/// Calls `call`, with `check` as the check of its blocking store operations.
///
/// `check` runs at least every 100 ms while an operation blocks. Once it returns `true`, the
/// operation ends with [`StoreError::Interrupted`]. A wait that is ended this way leaves the store
/// unchanged. An operation that needs an immediate reply loses its connection, because it is
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

/// Returns the part of `left` that a wait may last before the next check.
/// `None` means no limit.
pub fn slice(left: Option<Duration>) -> Option<Duration> {
    match CHECK.get() {
        None => left,
        Some(_) => Some(left.map_or(SLICE, |left| left.min(SLICE))),
    }
}

/// `true` if the call that this thread is in has to end.
pub fn is_wanted() -> bool {
    CHECK.get().is_some_and(|check| check())
}

/// Ends an operation after `elapsed`, if the call of this thread has to end.
///
/// # Errors
///
/// [`StoreError::Interrupted`] if the call has to end.
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
