//! Ending a call that blocks, by the thread that is in it.
//!
//! A language with signal handlers of its own has to look at them while a thread waits here. So a
//! call may be given a check, which is asked about ten times a second while the call blocks.
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

/// Calls `call`, and asks `check` at least every 100 ms while a store operation in it blocks. Once `check`
/// says yes, the operation ends with [`StoreError::Interrupted`].
///
/// A wait that is ended this way leaves the store as it was. An operation whose reply is due at
/// once, and does not come, costs the connection, because nobody knows whether it was done.
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

/// The part of `left` (`None`: permanently) that may be waited for before the next check.
pub fn slice(left: Option<Duration>) -> Option<Duration> {
    match CHECK.get() {
        None => left,
        Some(_) => Some(left.map_or(SLICE, |left| left.min(SLICE))),
    }
}

/// Whether the call that this thread is in is to end.
pub fn is_wanted() -> bool {
    CHECK.get().is_some_and(|check| check())
}

/// Ends an operation that has lasted for `elapsed`, if the call that this thread is in is to end.
///
/// # Errors
///
/// [`StoreError::Interrupted`] if it is.
pub fn check(operation: &'static str, keys: &[&str], elapsed: Duration) -> Result<(), StoreError> {
    match is_wanted() {
        false => Ok(()),
        true => Err(StoreError::Interrupted {
            operation,
            key: keys.join(", "),
            elapsed,
        }),
    }
}

/// Locks `mutex`, which another thread may hold for as long as it waits.
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
