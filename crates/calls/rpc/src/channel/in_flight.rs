//! The calls of an agent that are in flight, and its life: it runs, drains (its calls are waited
//! for), and is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use rdzv_lock::{Condvar, Mutex};

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPED: u8 = 2;

/// Counts calls, and says whether more may be made.
#[derive(Default)]
pub(crate) struct InFlight {
    /// `RUNNING` at first.
    state: AtomicU8,
    calls: AtomicUsize,
    idle: (Mutex<()>, Condvar),
}

/// A call that counts until this is dropped.
pub(crate) struct CountedCall(Arc<InFlight>);

impl InFlight {
    /// Counts a call until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> CountedCall {
        self.calls.fetch_add(1, Ordering::AcqRel);
        CountedCall(Arc::clone(self))
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    /// From now on the application makes no calls any more.
    pub(crate) fn begin_to_drain(&self) {
        let _ = self
            .state
            // In one order with the count: the last call sees that it is waited for, or is seen.
            .compare_exchange(RUNNING, DRAINING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// From now on the application makes no calls any more; waits until those it has made are over.
    /// Returns whether that was in time.
    pub(crate) fn drain(&self, until: Instant) -> bool {
        self.begin_to_drain();
        let (lock, idle) = &self.idle;
        let mut guard = lock.lock();
        while self.calls() > 0 {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            guard = idle.wait_timeout(guard, left).0;
        }
        true
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RUNNING
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.load(Ordering::Acquire) == STOPPED
    }

    /// Stops; returns whether it was not stopped before.
    pub(crate) fn stop(&self) -> bool {
        self.state.swap(STOPPED, Ordering::AcqRel) != STOPPED
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let all = &self.0;
        if all.calls.fetch_sub(1, Ordering::SeqCst) == 1 && !all.is_running() {
            let (lock, idle) = &all.idle;
            let _lock = lock.lock();
            idle.notify_all();
        }
    }
}
