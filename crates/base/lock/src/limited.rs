//! A mutex that a thread can wait for with a time limit.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::time::{Duration, Instant};

use crate::{Condvar, Mutex, MutexGuard};

/// A value that one thread at a time can use; others can limit their wait.
#[derive(Debug, Default)]
pub struct LimitedMutex<T> {
    value: Mutex<T>,
    /// Number of threads that wait with a limit.
    waiting: AtomicUsize,
    /// Held by a waiting thread from an attempt until the thread sleeps.
    /// A thread that releases the value locks the gate before it notifies, so no notification is
    /// lost.
    gate: Mutex<()>,
    given_back: Condvar,
}

impl<T> LimitedMutex<T> {
    /// Creates an unlocked mutex.
    pub const fn new(value: T) -> Self {
        Self {
            value: Mutex::new(value),
            waiting: AtomicUsize::new(0),
            gate: Mutex::new(()),
            given_back: Condvar::new(),
        }
    }

    /// Locks the value; waits without a limit.
    pub fn lock(&self) -> LimitedGuard<'_, T> {
        self.guard(self.value.lock())
    }

    /// Locks the value if no thread holds it; otherwise returns `None`.
    pub fn try_lock(&self) -> Option<LimitedGuard<'_, T>> {
        Some(self.guard(self.value.try_lock()?))
    }

    /// Locks the value within `limit`; `None` if the value is still locked then.
    pub fn try_lock_for(&self, limit: Duration) -> Option<LimitedGuard<'_, T>> {
        match self.try_lock() {
            Some(guard) => Some(guard),
            None => self.wait_before(Instant::now().checked_add(limit)),
        }
    }

    /// Locks the value before `deadline`; `None` if the value is still locked then.
    pub fn try_lock_before(&self, deadline: Instant) -> Option<LimitedGuard<'_, T>> {
        match self.try_lock() {
            Some(guard) => Some(guard),
            None => self.wait_before(Some(deadline)),
        }
    }

    /// Waits until the value can be locked, or until the deadline.
    /// Without a deadline (`None`), the wait has no limit.
    fn wait_before(&self, deadline: Option<Instant>) -> Option<LimitedGuard<'_, T>> {
        let Some(deadline) = deadline else {
            return Some(self.lock());
        };
        self.waiting.fetch_add(1, Ordering::SeqCst);
        // A thread that releases the value after this point sees the waiting thread. A thread that
        // released the value earlier did so before the attempt below.
        fence(Ordering::SeqCst);
        let mut gate = self.gate.lock();
        let guard = loop {
            if let Some(guard) = self.try_lock() {
                break Some(guard);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break None;
            }
            gate = self.given_back.wait_timeout(gate, left).0;
        };
        drop(gate);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard
    }

    fn guard<'a>(&'a self, value: MutexGuard<'a, T>) -> LimitedGuard<'a, T> {
        LimitedGuard {
            mutex: self,
            value: Some(value),
        }
    }
}

/// Access to the locked value; dropping the guard unlocks the value.
#[derive(Debug)]
pub struct LimitedGuard<'a, T> {
    mutex: &'a LimitedMutex<T>,
    /// `None` only while the guard is being dropped.
    value: Option<MutexGuard<'a, T>>,
}

impl<T> Deref for LimitedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("the value is held")
    }
}

impl<T> DerefMut for LimitedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("the value is held")
    }
}

impl<T> Drop for LimitedGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        fence(Ordering::SeqCst);
        if self.mutex.waiting.load(Ordering::SeqCst) > 0 {
            drop(self.mutex.gate.lock());
            self.mutex.given_back.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_wait_has_a_limit() {
        let mutex = LimitedMutex::new(1);
        let held = mutex.lock();
        let begun = Instant::now();
        assert!(mutex.try_lock_for(Duration::from_millis(20)).is_none());
        assert!(begun.elapsed() >= Duration::from_millis(20));
        drop(held);
        assert_eq!(mutex.try_lock_for(LONG).as_deref(), Some(&1));
        assert_eq!(mutex.waiting.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn who_waits_gets_the_value_when_it_is_given_back() {
        let mutex = Arc::new(LimitedMutex::new(0));
        let (sender, done) = mpsc::channel();
        let threads = (0..4).map(|_| {
            let (mutex, sender) = (Arc::clone(&mutex), sender.clone());
            thread::spawn(move || {
                for _ in 0..2000 {
                    *mutex.try_lock_for(LONG).expect("the others give it back") += 1;
                }
                sender.send(()).unwrap();
            })
        });
        let threads: Vec<_> = threads.collect();
        for _ in &threads {
            done.recv_timeout(LONG).expect("no wake-up is lost");
        }
        assert_eq!(*mutex.lock(), 8000);
        threads
            .into_iter()
            .for_each(|thread| thread.join().unwrap());
    }
}
