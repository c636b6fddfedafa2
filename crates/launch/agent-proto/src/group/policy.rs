//! The restart budget, and the effect of signals on the shutdown timeout.

use std::time::Duration;

use rdzv_core::time::Mono;

use super::Finality;

/// Restart budget of the job, as far as this node knows it.
/// Restarts on other nodes that rdzv's coordinator reports use the same budget, except with
/// `--in-process`. Other changes of membership never cost a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartBudget {
    most: u32,
    used: u32,
    used_by_others: u32,
    forfeited: Option<Finality>,
}

impl RestartBudget {
    /// Creates a budget of `most` restarts.
    /// `used` restarts were used by a previous agent of this node.
    pub fn new(most: u32, used: u32) -> Self {
        Self {
            most,
            used,
            used_by_others: 0,
            forfeited: None,
        }
    }

    /// Takes one restart; `false` if none is left.
    pub fn take(&mut self) -> bool {
        let available = self.remaining() > 0;
        if available {
            self.used += 1;
        }
        available
    }

    /// Number of restarts that are left.
    pub fn remaining(self) -> u32 {
        if self.forfeited.is_some() {
            return 0;
        }
        self.most.saturating_sub(self.used + self.used_by_others)
    }

    /// Counts one restart that another node has taken.
    pub fn taken_elsewhere(&mut self) {
        self.used_by_others = self.used_by_others.saturating_add(1);
    }

    /// Forfeits the restarts that are left, for this reason.
    pub fn forfeit(&mut self, reason: Finality) {
        self.forfeited.get_or_insert(reason);
    }

    /// Returns the reason why the remaining restarts are forfeited, if they are.
    pub fn forfeited(self) -> Option<Finality> {
        self.forfeited
    }

    /// Number of restarts that this node has taken.
    /// Its workers see this number as their restart count.
    pub fn used(self) -> u32 {
        self.used
    }

    /// Number of restarts that this node knows of, on all nodes.
    pub fn used_by_job(self) -> u32 {
        self.used.saturating_add(self.used_by_others)
    }

    /// Initial number of restarts.
    pub fn most(self) -> u32 {
        self.most
    }
}

/// Shutdown timeout of the workers after the loss of the keeper.
/// A user who kills the keeper wants the job to end immediately: all processes must exit within a
/// second.
pub const TIMEOUT_WITHOUT_KEEPER: Duration = Duration::from_millis(400);

/// Time that the last failure of a budget waits for an explanation.
/// The loss of a node may explain it: workers fail because a node vanishes, and may do so before
/// the agent is notified. This value applies if no backend provides its own.
pub const EXPLAINED_WITHIN: Duration = Duration::from_secs(1);

/// Time that this node still waits at the exit barrier once the run is over.
/// If the node that ended the run passed the barrier, this node passes it within this time.
pub const BARRIER_AFTER_CLOSE: Duration = Duration::from_secs(5);

/// Time within which a repeated signal counts as the same request.
/// A signal arrives twice if both a terminal and a forwarding parent send it, or if a tool signals
/// a process and then its group.
const SAME_REQUEST: Duration = Duration::from_millis(200);

/// Counts the signals that ask the agent to stop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StopRequests {
    count: u32,
    last: Option<(i32, Mono)>,
}

impl StopRequests {
    /// Returns the longest time that the workers still have after this signal.
    ///
    /// Returns `None` if the signal repeats the last one within 200 ms. The first request grants
    /// the whole shutdown timeout, the second a quarter of it, and any further one none.
    pub fn timeout_after(
        &mut self,
        now: Mono,
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Option<Duration> {
        if let Some((last, at)) = self.last
            && last == signal
            && now.since(at) < SAME_REQUEST
        {
            return None;
        }
        self.last = Some((signal, now));
        self.count += 1;
        Some(match self.count {
            1 => shutdown_timeout,
            2 => shutdown_timeout / 4,
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
        budget.forfeit(Finality::WorkersHeld);
        assert!(!budget.take(), "forfeited restarts cannot be taken");
        assert_eq!(
            (budget.remaining(), budget.used(), budget.most()),
            (0, 1, 2)
        );
    }

    #[test]
    fn later_signals_only_shorten_the_shutdown_timeout() {
        let shutdown_timeout = Duration::from_secs(8);
        let at = |millis| Mono::from_origin(Duration::from_millis(millis));
        let mut requests = StopRequests::default();
        assert_eq!(
            requests.timeout_after(at(0), 15, shutdown_timeout),
            Some(shutdown_timeout)
        );
        assert_eq!(requests.timeout_after(at(100), 15, shutdown_timeout), None);
        assert_eq!(
            requests.timeout_after(at(500), 15, shutdown_timeout),
            Some(shutdown_timeout / 4)
        );
        assert_eq!(
            requests.timeout_after(at(510), 2, shutdown_timeout),
            Some(Duration::ZERO)
        );
    }
}
