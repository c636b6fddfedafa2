//! Takes the driver to another processor than the one on which its callers spin.
//!
//! Two threads that spin for one another on one processor pay a change of threads for each step of
//! a call, though another processor may be free. Linux leaves them there: neither sleeps for long,
//! and in a virtual machine it takes a processor that is halted for one that the host has given to
//! others, so it puts a thread that is woken on the processor of the thread that wakes it. The
//! driver belongs to the agent, so it is the one that goes; the threads of the program stay where
//! they are.

use std::time::{Duration, Instant};

use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Number of waits in a row, ended after others had run on the processor, that show that it is
/// shared.
const MANY: u32 = 4;

/// The least time between two moves.
///
/// It doubles with each move that has not helped, up to the limit: on a machine where all
/// processors are busy nothing helps. A move has helped if as many waits in a row end without
/// others having run.
const PAUSE: Duration = Duration::from_micros(100);
const PAUSE_LIMIT: Duration = Duration::from_secs(1);

/// Decides when the driver moves.
#[derive(Debug)]
pub(crate) struct Placement {
    /// Number of waits in a row that ended after others had run; and of those that did not, before.
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
    /// Counts a wait for a frame that ended now, after others had run on this processor or not.
    /// Returns whether the driver has to move.
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

    /// Counts a wait for a frame that ended now, and moves the calling thread if it has to.
    pub(crate) fn note(&mut self, others_ran: bool, now: Instant) {
        if self.count(others_ran, now) {
            leave_processor();
        }
    }
}

/// Moves the calling thread to another one of the processors that it may use.
///
/// Where there is none, or the system refuses, it stays.
fn leave_processor() {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut others = allowed;
    others.unset(sched_getcpu());
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        // At once, since threads that this one starts may use the same processors. A failure would
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
        // A wait every 10 us, for ten seconds.
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
        // A processor of its own makes it ready to move at once again.
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
