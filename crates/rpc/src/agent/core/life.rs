//! The life of an agent: it runs, drains (calls of the application are waited for), and is stopped.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::Core;

pub(super) const RUNNING: u8 = 0;
const DRAINING: u8 = 1;
const STOPPED: u8 = 2;

impl Core {
    /// Counts a call until the result is dropped.
    pub(crate) fn call_begins(&self) -> OnItsWay {
        self.counters.made();
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        OnItsWay(self.weak())
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::SeqCst)
    }

    /// From now on the application makes no calls any more.
    pub(crate) fn begin_to_drain(&self) {
        let _ = self
            .state
            // In one order with the count: the last call sees that it is waited for, or is seen.
            .compare_exchange(RUNNING, DRAINING, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// From now on the application makes no calls any more; waits until those it has made are over.
    /// Says whether that was in time.
    pub(crate) fn drain(&self, until: Option<Instant>) -> bool {
        self.begin_to_drain();
        let (lock, idle) = &self.idle;
        let mut guard = lock.lock();
        while self.in_flight() > 0 {
            match until {
                Some(until) if until <= Instant::now() => return false,
                Some(until) => drop(idle.wait_until(&mut guard, until)),
                None => idle.wait(&mut guard),
            }
        }
        true
    }

    pub(crate) fn is_running(&self) -> bool {
        self.state.load(Ordering::SeqCst) == RUNNING
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.state.load(Ordering::Acquire) == STOPPED
    }

    /// Stops at once; says whether it was not stopped before.
    pub(crate) fn stop(&self) -> bool {
        let news = self.state.swap(STOPPED, Ordering::AcqRel) != STOPPED;
        if news {
            for leak in self.references.end(self) {
                tracing::warn!(worker = %self.me, holder = %leak.holder, "{leak}");
            }
        }
        self.poller.wake();
        self.tell_group_changed();
        self.gathers.stop();
        news
    }

    /// Lets go of the threads that run functions, without waiting for them. Async functions, which were
    /// told, have a moment to end by themselves.
    pub(crate) fn end_runtime(&self) {
        let runtime = self.runtime.lock().take();
        if let Some(runtime) = runtime {
            self.under_way.end(runtime);
        }
        self.turns.close();
    }
}

/// A call that is on its way, as far as it has to be waited for at the end.
pub(crate) struct OnItsWay(Weak<Core>);

#[cfg(test)]
impl OnItsWay {
    /// One that nobody counts.
    pub(crate) fn uncounted() -> Self {
        Self(Weak::new())
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        let Some(core) = self.0.upgrade() else {
            return;
        };
        if core.in_flight.fetch_sub(1, Ordering::SeqCst) == 1 && !core.is_running() {
            let _lock = core.idle.0.lock();
            core.idle.1.notify_all();
        }
    }
}
