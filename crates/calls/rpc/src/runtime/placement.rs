//! Moving the driver away from a processor on which its callers spin.
//!
//! Two threads may spin for each other on one processor. Each step of a call then costs a thread
//! switch, even if another processor is free. Linux leaves them there, because neither thread
//! sleeps for long. In a virtual machine, Linux also mistakes a halted processor for one that the
//! host has given to others. It therefore wakes a thread on the processor of the waking thread.
//! Only the driver moves, because it belongs to the agent; the threads of the program stay.

use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Number of consecutive waits that prove that the processor is shared.
/// A wait counts if other threads ran on the processor before it ended.
const MANY: u32 = 4;

/// Minimum time between two moves.
///
/// It doubles with each move, up to `PAUSE_LIMIT`: on a machine where all processors are busy, no
/// move helps. `MANY` consecutive waits without other threads on the processor reset it.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Counts and times that decide when the driver moves.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Consecutive waits with other threads on the processor, and without.
    shared: u32,
    apart: u32,
    not_before: Option<Instant>,
    pause: Duration,
}

impl Default for Placement {
    fn default() -> Self {
        Self {
            shared: 0,
            apart: 0,
            not_before: None,
            pause: PAUSE,
        }
    }
}

impl Placement {
    /// Counts a wait that has just ended. Returns `true` if the driver must move.
    ///
    /// `others_ran` is `true` if other threads ran on this processor during the wait.
    fn count(&mut self, others_ran: bool, now: Instant) -> bool {
        if !others_ran {
            self.shared = 0;
            self.apart = self.apart.saturating_add(1);
            if self.apart == MANY {
                self.pause = PAUSE;
            }
            return false;
        }
        self.apart = 0;
        self.shared += 1;
        if self.shared < MANY || self.not_before.is_some_and(|at| now < at) {
            return false;
        }
        self.shared = 0;
        self.not_before = Some(now + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_LIMIT);
        true
    }

    /// Counts a wait that ended now, and moves the calling thread if necessary.
    pub(crate) fn note(&mut self, others_ran: bool, now: Instant) {
        if self.count(others_ran, now) {
            leave_processor();
        }
    }
}

/// Moves the calling thread to another processor that it may use.
///
/// The thread stays if there is no other processor, or if the system refuses.
fn leave_processor() {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut others = allowed;
    others.unset(sched_getcpu());
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        // The mask is restored immediately, because new threads inherit it. A failure would only
        // leave one processor out, which does no harm.
        let _ = sched_setaffinity(None, &allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_moves_after_some_shared_waits_and_less_often_where_that_does_not_help() {
        let mut placement = Placement::default();
        let start = Instant::now();
        // A wait every 10 µs, for ten seconds.
        let moves = (0..1_000_000)
            .filter(|wait| placement.count(true, start + Duration::from_micros(wait * 10)))
            .collect::<Vec<_>>();
        assert_eq!(moves[..4], [3, 13, 33, 73]);
        assert!((15..30).contains(&moves.len()), "{}", moves.len());
    }

    #[test]
    fn it_stays_where_nobody_else_runs() {
        let mut placement = Placement::default();
        let now = Instant::now();
        for wait in 0..1000 {
            assert!(!placement.count(wait % 4 != 3, now), "{wait}");
        }
        // After some waits without other threads, the next move may come early again.
        placement.pause = PAUSE_LIMIT;
        for _ in 0..MANY {
            placement.count(false, now);
        }
        assert_eq!(placement.pause, PAUSE);
    }

    #[test]
    fn a_thread_that_leaves_its_processor_may_use_all_of_them_afterwards() {
        let before = sched_getaffinity(None).unwrap();
        leave_processor();
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
