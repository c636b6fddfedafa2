//! The calls of an agent that are in flight, and the state of the agent.
//!
//! An agent runs, drains (waits for its calls) in a graceful shutdown, and then is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Instant;

use rdzv_lock::{Condvar, Mutex};

const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPED: u8 = 2;

/// Number of an agent's calls, and the state that allows or forbids new calls.
#[derive(Default)]
pub(crate) struct InFlight {
    /// `RUNNING` at the start.
    state: AtomicU8,
    calls: AtomicUsize,
    idle: (Mutex<()>, Condvar),
}

/// Guard that counts a call until it is dropped.
pub(crate) struct CountedCall(Arc<InFlight>);

impl InFlight {
    /// Counts a call until the returned guard is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> CountedCall {
        self.calls.fetch_add(1, Ordering::SeqCst);
        CountedCall(Arc::clone(self))
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    pub(crate) fn begin_to_drain(&self) {
        let _ = self
            .state
            // State and count have one total order: either the last call sees `DRAINING` when it
            // ends, or `drain` sees that it has ended.
            .compare_exchange(RUNNING, DRAINING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Forbids new calls of the application and waits for the calls in flight.
    /// Returns `true` if all calls ended in time.
    pub(crate) fn drain(&self, deadline: Instant) -> bool {
        self.begin_to_drain();
        let (lock, idle) = &self.idle;
        let mut guard = lock.lock();
        while self.calls() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
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

    /// Stops the agent. Returns `true` if it was not stopped before.
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
