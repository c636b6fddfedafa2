//! The restart budget, and what signals to the agent mean for the workers' grace.

use std::time::Duration;

use rdzv_core::time::Mono;

/// Number of restarts that the job may still use, as far as this node knows: those of other nodes come
/// out of it too. Other changes of membership never cost a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartBudget {
    most: u32,
    used: u32,
    used_by_others: u32,
    forfeited: bool,
}

impl RestartBudget {
    /// A budget of `most` restarts, of which this node has used some before.
    pub fn new(most: u32, used: u32) -> Self {
        Self {
            most,
            used,
            used_by_others: 0,
            forfeited: false,
        }
    }

    /// Takes one restart; false if none is left.
    pub fn take(&mut self) -> bool {
        let available = self.remaining() > 0;
        if available {
            self.used += 1;
        }
        available
    }

    /// Number of restarts that are left.
    pub fn remaining(self) -> u32 {
        if self.forfeited {
            return 0;
        }
        self.most.saturating_sub(self.used + self.used_by_others)
    }

    /// Another node has taken one.
    pub fn taken_elsewhere(&mut self) {
        self.used_by_others = self.used_by_others.saturating_add(1);
    }

    /// Gives up the restarts that are left.
    pub fn forfeit(&mut self) {
        self.forfeited = true;
    }

    /// Whether the restarts that were left have been given up.
    pub fn is_forfeited(self) -> bool {
        self.forfeited
    }

    /// Number of restarts that this node has taken: the restart count that its workers see.
    pub fn used(self) -> u32 {
        self.used
    }

    /// Number of restarts at the beginning.
    pub fn most(self) -> u32 {
        self.most
    }
}

/// Grace of the workers once the keeper is gone: its killer wants the job to end at once, and
/// everything has to be gone within a second.
pub const GRACE_WITHOUT_KEEPER: Duration = Duration::from_millis(400);

/// Time that the last failure of a budget waits for a change of membership that explains it, where
/// the rendezvous notices at once that a node vanishes: workers fail because of that, and may do so
/// before the agent is notified.
pub const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);

/// Time that the exit barrier goes on after another node has ended the run: if that node came through
/// the barrier itself, this one does too.
pub const BARRIER_AFTER_CLOSE: Duration = Duration::from_secs(5);

/// The same signal again within this time is the same request: a terminal and a parent that forwards,
/// or a tool that signals a process and then its group.
const SAME_REQUEST: Duration = Duration::from_millis(200);

/// Counts the signals that ask the agent to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopRequests {
    count: u32,
    last: Option<(i32, Mono)>,
}

impl StopRequests {
    /// Takes note of a signal; `None` if it repeats the last one at once, else how long the
    /// workers have from here on at most.
    ///
    /// The first request grants the whole grace, the second a quarter of it, any further one
    /// nothing.
    pub fn grace_after(&mut self, now: Mono, signal: i32, grace: Duration) -> Option<Duration> {
        if let Some((last, at)) = self.last
            && last == signal
            && now.since(at) < SAME_REQUEST
        {
            return None;
        }
        self.last = Some((signal, now));
        self.count += 1;
        Some(match self.count {
            1 => grace,
            2 => grace / 4,
            _ => Duration::ZERO,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_never_exceeded() {
        let mut budget = RestartBudget::new(2, 0);
        assert!(budget.take() && budget.take());
        assert!(!budget.take(), "INV-G1");
        assert_eq!(
            (budget.remaining(), budget.used(), budget.most()),
            (0, 2, 2)
        );
        let mut budget = RestartBudget::new(2, 0);
        assert!(budget.take());
        budget.forfeit();
        assert!(!budget.take(), "what is forfeited is gone");
        assert_eq!(
            (budget.remaining(), budget.used(), budget.most()),
            (0, 1, 2)
        );
    }

    #[test]
    fn later_signals_only_shorten_the_grace() {
        let grace = Duration::from_secs(8);
        let at = |millis| Mono::from_origin(Duration::from_millis(millis));
        let mut requests = StopRequests::default();
        assert_eq!(requests.grace_after(at(0), 15, grace), Some(grace));
        assert_eq!(requests.grace_after(at(100), 15, grace), None);
        assert_eq!(requests.grace_after(at(500), 15, grace), Some(grace / 4));
        assert_eq!(
            requests.grace_after(at(510), 2, grace),
            Some(Duration::ZERO)
        );
    }
}
