#![doc = include_str!("../README.md")]
//!
//! If a thread panics while it holds a lock, other threads can still use the value. Code in rdzv
//! must therefore not panic in the middle of a change while it holds a lock.
//!
//! The whole state of a lock is in the lock itself, as in the standard library. Other locks (such
//! as those of `parking_lot`) keep waiting threads in a table of the process. A forked child would
//! inherit a table of threads that do not exist in the child, and whose memory the child uses for
//! other data.
//!
//! | type | content |
//! |---|---|
//! | [`Mutex`], [`RwLock`], [`Condvar`] | those of the standard library, without poisoning |
//! | [`LimitedMutex`] | a mutex that a thread can wait for with a time limit |

mod limited;

use std::sync::{PoisonError, TryLockError};
use std::time::Duration;

pub use std::sync::{MutexGuard, RwLockReadGuard, RwLockWriteGuard};

pub use limited::{LimitedGuard, LimitedMutex};

/// A value that one thread at a time can use.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    /// Consumes the mutex and returns its value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the value; waits until no other thread holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value if no thread holds it; otherwise returns `None`.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Returns the value without locking, because no other thread can access it.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value that many threads can read, or one thread can write.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks the value for reading; waits until no thread writes it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the value for writing; waits until no thread uses it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Threads that wait for a change of the value of a [`Mutex`].
#[derive(Debug, Default)]
pub struct Condvar(std::sync::Condvar);

impl Condvar {
    /// Creates a condition variable without waiting threads.
    pub const fn new() -> Self {
        Self(std::sync::Condvar::new())
    }

    /// Unlocks the value, waits for a notification, and locks the value again.
    /// The wait can also end without a notification.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits like [`Condvar::wait`], but for at most `limit`.
    /// Also returns whether the limit ended the wait.
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
    ) -> (MutexGuard<'a, T>, bool) {
        let woken = self.0.wait_timeout(guard, limit);
        let (guard, over) = woken.unwrap_or_else(PoisonError::into_inner);
        (guard, over.timed_out())
    }

    /// Waits while the condition holds, for at most `limit`.
    /// Also returns `true` if the limit has passed and the condition still holds.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        limit: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, bool) {
        let woken = self.0.wait_timeout_while(guard, limit, condition);
        let (guard, over) = woken.unwrap_or_else(PoisonError::into_inner);
        (guard, over.timed_out())
    }

    /// Wakes one waiting thread.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    #[test]
    fn a_panic_leaves_the_value_to_others() {
        let mutex = Mutex::new(1);
        let lock = RwLock::new(1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _both = (mutex.lock(), lock.write());
            panic!("while they are held");
        }));
        assert!(panicked.is_err());
        assert_eq!((*mutex.lock(), *lock.read()), (1, 1));
        assert_eq!(mutex.try_lock().as_deref(), Some(&1));
        assert_eq!(mutex.into_inner(), 1);
    }

    #[test]
    fn a_value_that_is_held_is_not_given_twice() {
        let mutex = Mutex::new(1);
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop(held);
        assert!(mutex.try_lock().is_some());
    }
}
