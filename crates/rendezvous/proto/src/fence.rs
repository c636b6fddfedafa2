//! The lease and the fence of a node.
//!
//! With a fence, no worker of a node's previous round is still running when the coordinator
//! announces a round without that node. A round can have a fence only while its coordinator has
//! three voters or more. The coordinator turns the fence on and off.
//!
//! ```text
//!   agent        Lease ──► coordinator ── has it a majority? ──► voters
//!                            lease = L after the agent has sent the question
//!   agent    ◄── Backed ──────┘                                         end of the lease: SIGSTOP
//! ```
//!
//! In a round with a fence, each agent asks its coordinator at regular intervals for a lease. After
//! a question arrives, the coordinator asks the other voters. It answers if a majority accepts it
//! as the leader, and the agent is not lost. An answer moves the end of the lease to L after the
//! time at which the agent *sent* the question. At the end of the lease the agent suspends its
//! workers ([`Fence`]). They continue when a later answer arrives.
//!
//! The coordinator declares a silent agent lost [`lost_after`] after the agent's last message, at
//! the earliest. A new coordinator counts from the last contact of its electors with an earlier
//! leader. Clocks may drift by 5 % relative to one another, and a signal may take
//! [`TAKES_EFFECT`].
//!
//! A majority confirms each answer after the agent has sent the question. So any coordinator, the
//! current one or its successor, counts from a later time than the agent. The lease ends before
//! the coordinator stops waiting.

use std::time::Duration;

use crate::Rule;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now};

/// Maximum time that a signal takes to reach all workers.
pub const TAKES_EFFECT: Duration = Duration::from_millis(250);

/// Extension of the lease for each agent of the round.
///
/// It keeps many simultaneous connections from suspending workers.
const EACH: Duration = Duration::from_micros(200);

/// Returns the lease of each agent in a round of `agents` agents.
///
/// `node_timeout` is the time for which a node may be silent.
pub fn lease(node_timeout: Duration, agents: u32) -> Duration {
    let lease = node_timeout.saturating_add(EACH * agents);
    // Whole milliseconds, as on the wire.
    Duration::from_millis(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX) + 1)
}

/// Returns the time after which the workers of a silent agent are suspended.
///
/// It allows for the drift of clocks.
pub fn lost_after(lease: Duration, rules: Rules<Rule>) -> Duration {
    let drift = if rules.has(Rule::ClocksDrift) {
        lease / 20
    } else {
        Duration::ZERO
    };
    lease + drift + TAKES_EFFECT
}

/// An input of a [`Fence`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// The lease of a round has a new end, until which its workers may run.
    Lease {
        /// The round.
        round: u64,
        /// The end of the lease.
        end: Mono,
    },
    /// The round is over for this node; its workers are about to be stopped.
    Over,
    /// The round no longer has a fence.
    Off,
    /// All workers have exited.
    Gone,
    /// No later round can follow, so no other workers can run beside these.
    Lifted,
    /// The fence's deadline has passed.
    Tick,
    /// This process continues after it was stopped.
    ///
    /// If the lease ended in between, another process has suspended the workers at that time.
    Continued,
}

/// An action of a [`Fence`], for all workers of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// Send SIGSTOP immediately.
    Stop,
    /// Send SIGCONT; the value is the time for which the workers were suspended.
    Continue(Duration),
    /// Send SIGKILL immediately. The workers never continue.
    Kill,
    /// Leave the round: the workers were suspended for too long.
    ///
    /// The value is the time for which they were suspended.
    GiveUp(Duration),
}

/// The machine that suspends the workers of a node at the end of its lease.
#[derive(Debug, Default)]
pub struct Fence {
    rules: Rules<Rule>,
    /// Time after which the node leaves the round, counted from `stopped`.
    kill_after: Duration,
    round: Option<u64>,
    /// The last round whose workers have all exited.
    left: Option<u64>,
    end: Option<Mono>,
    /// Time at which this process suspended the workers; `None` if they may run.
    stopped: Option<Mono>,
    /// Time since which the suspended workers do not run.
    since: Mono,
    is_over: bool,
    outbox: Outbox<Output>,
}

impl Fence {
    /// Creates a fence, which does nothing until it has a lease.
    ///
    /// The node leaves the round `kill_after` after this process has suspended its workers.
    pub fn new(kill_after: Duration, rules: Rules<Rule>) -> Self {
        Self {
            rules,
            kill_after,
            ..Self::default()
        }
    }

    /// `true` if the workers are suspended, and only the fence may continue them.
    pub fn is_closed(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns the time since which the workers are suspended; `None` if they run.
    pub fn stands_since(&self) -> Option<Mono> {
        self.stopped.map(|_| self.since)
    }

    /// Returns the end of the lease of the current workers.
    pub fn lease_end(&self) -> Option<Mono> {
        self.end
    }

    fn lease(&mut self, now: Mono, round: u64, end: Mono) {
        if self.stopped.is_none() && self.end.is_some_and(|end| end <= now) {
            // This process was delayed. Another process may have suspended the workers in
            // its place, and must see that they continue.
            self.tick(now);
        }
        if self.left.is_some_and(|left| round <= left) {
            return;
        }
        self.round = Some(round);
        self.end = self.end.max(Some(end));
        if self.end.is_some_and(|end| end > now) {
            self.open(now);
        }
    }

    /// Continues the workers, unless their round is over.
    fn open(&mut self, now: Mono) {
        if !self.is_over && self.stopped.take().is_some() {
            self.outbox.push(Output::Continue(now.since(self.since)));
        }
    }

    fn over(&mut self) {
        self.is_over = true;
        if self.stopped.is_some() {
            self.outbox.push(Output::Kill);
        }
    }

    fn tick(&mut self, now: Mono) {
        match self.stopped {
            None if self.end.is_some_and(|end| end <= now) => {
                (self.stopped, self.since) = (Some(now), now);
                self.outbox.push(if self.is_over {
                    Output::Kill
                } else {
                    Output::Stop
                });
            }
            Some(since) if !self.rules.has(Rule::AnswersContinue) && !self.is_over => {
                self.end = Some(now + self.kill_after);
                self.stopped = None;
                self.outbox.push(Output::Continue(now.since(since)));
            }
            Some(stopped) if !self.is_over && stopped + self.kill_after <= now => {
                self.is_over = true;
                self.outbox.push(Output::GiveUp(now.since(self.since)));
            }
            _ => {}
        }
    }
}

impl Machine for Fence {
    type Input<'a> = Input;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input) {
        self.outbox.assert_drained();
        let now = now.mono;
        match input {
            Input::Lease { round, end } => self.lease(now, round, end),
            Input::Over => self.over(),
            Input::Off => {
                self.end = None;
                self.open(now);
            }
            Input::Gone => {
                self.left = self.left.max(self.round.take());
                (self.end, self.stopped, self.is_over) = (None, None, false);
            }
            Input::Lifted => {
                self.over();
                if self.stopped.is_none() {
                    self.end = None;
                }
            }
            Input::Tick => self.tick(now),
            Input::Continued => {
                let was_open = self.stopped.is_none();
                self.tick(now);
                if let Some(end) = self.end.filter(|_| was_open && self.stopped.is_some()) {
                    self.since = end;
                }
            }
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        match self.stopped {
            None => self.end,
            Some(_) if self.is_over => None,
            Some(since) if !self.rules.has(Rule::AnswersContinue) => {
                Some(since + Duration::from_millis(500))
            }
            Some(since) => Some(since + self.kill_after),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Now {
        Now::at(Mono::from_origin(Duration::from_millis(millis)))
    }

    fn fence() -> Fence {
        Fence::new(Duration::from_secs(60), Rules::default())
    }

    fn tell(fence: &mut Fence, now: u64, input: Input) -> Vec<Output> {
        fence.handle(at(now), input);
        std::iter::from_fn(|| fence.poll_output()).collect()
    }

    fn lease(end: u64) -> Input {
        Input::Lease {
            round: 1,
            end: at(end).mono,
        }
    }

    #[test]
    fn workers_stand_still_from_the_end_of_the_lease_to_the_next_answer() {
        let mut fence = fence();
        assert_eq!(tell(&mut fence, 0, lease(3000)), []);
        assert_eq!(tell(&mut fence, 700, lease(3700)), []);
        // A late answer does not shorten the lease.
        assert_eq!(tell(&mut fence, 800, lease(3100)), []);
        assert_eq!(fence.deadline(), Some(at(3700).mono));
        assert_eq!(tell(&mut fence, 3700, Input::Tick), [Output::Stop]);
        assert!(fence.is_closed());
        // The agent sent this question too long ago: the lease of the answer is over.
        assert_eq!(tell(&mut fence, 5000, lease(4900)), []);
        let stood = Duration::from_millis(2300);
        let continued = [Output::Continue(stood)];
        assert_eq!(tell(&mut fence, 6000, lease(8900)), continued);
        assert_eq!(tell(&mut fence, 8900, Input::Tick), [Output::Stop]);
    }

    #[test]
    fn workers_of_a_round_without_a_fence_go_on() {
        let mut fence = fence();
        tell(&mut fence, 0, lease(3000));
        assert_eq!(tell(&mut fence, 3000, Input::Tick), [Output::Stop]);
        let continued = [Output::Continue(Duration::from_secs(1))];
        assert_eq!(tell(&mut fence, 4000, Input::Off), continued);
        assert_eq!((fence.deadline(), fence.lease_end()), (None, None));
        assert_eq!(tell(&mut fence, 5000, lease(8000)), []);
        assert_eq!(fence.deadline(), Some(at(8000).mono));
        assert_eq!(tell(&mut fence, 6000, Input::Off), []);
        // The agent stops the workers of a round that is over in the usual way.
        tell(&mut fence, 7000, lease(10_000));
        tell(&mut fence, 7500, Input::Over);
        assert_eq!(tell(&mut fence, 7600, Input::Off), []);
        assert_eq!(fence.deadline(), None);
    }

    #[test]
    fn an_answer_after_the_end_of_the_lease_finds_them_stopped() {
        let mut fence = fence();
        tell(&mut fence, 0, lease(3000));
        let continued = Output::Continue(Duration::ZERO);
        assert_eq!(
            tell(&mut fence, 3100, lease(6000)),
            [Output::Stop, continued]
        );
    }

    #[test]
    fn workers_of_a_process_that_was_stopped_have_stood_still_since_the_end_of_the_lease() {
        let mut fence = fence();
        tell(&mut fence, 0, lease(3000));
        assert_eq!(tell(&mut fence, 2000, Input::Continued), []);
        assert_eq!(tell(&mut fence, 15_000, Input::Continued), [Output::Stop]);
        assert_eq!(fence.stands_since(), Some(at(3000).mono));
        // The node does not leave the round yet: the coordinator may have waited for it.
        assert_eq!(fence.deadline(), Some(at(75_000).mono));
        let continued = [Output::Continue(Duration::from_millis(12_200))];
        assert_eq!(tell(&mut fence, 15_200, lease(18_000)), continued);
        assert_eq!(fence.stands_since(), None);
    }

    #[test]
    fn workers_of_a_round_that_is_over_are_killed_and_never_continued() {
        let mut fence = fence();
        tell(&mut fence, 0, lease(3000));
        tell(&mut fence, 3000, Input::Tick);
        assert_eq!(tell(&mut fence, 3500, Input::Over), [Output::Kill]);
        assert_eq!(tell(&mut fence, 3600, lease(6000)), []);
        assert_eq!(fence.deadline(), None);
        // The next round has a separate lease; a late answer is about the previous round.
        assert_eq!(tell(&mut fence, 4000, Input::Gone), []);
        assert_eq!(tell(&mut fence, 4001, lease(7000)), []);
        assert_eq!(fence.deadline(), None);
        let end = at(9000).mono;
        tell(&mut fence, 4100, Input::Lease { round: 2, end });
        assert_eq!(fence.deadline(), Some(end));
    }

    #[test]
    fn the_time_of_suspended_workers_ends_with_the_lease() {
        let mut fence = fence();
        tell(&mut fence, 0, lease(3000));
        assert_eq!(tell(&mut fence, 1000, Input::Over), []);
        assert_eq!(tell(&mut fence, 3000, Input::Tick), [Output::Kill]);
        // At the end of the run no other workers run beside them.
        let mut last = Fence::new(Duration::from_secs(60), Rules::default());
        tell(&mut last, 0, lease(3000));
        assert_eq!(tell(&mut last, 1000, Input::Lifted), []);
        assert_eq!(last.deadline(), None);
    }

    #[test]
    fn workers_that_have_stood_still_for_too_long_are_given_up() {
        let mut fence = fence();
        tell(&mut fence, 0, lease(3000));
        tell(&mut fence, 3000, Input::Tick);
        assert_eq!(fence.deadline(), Some(at(63_000).mono));
        let given_up = [Output::GiveUp(Duration::from_secs(60))];
        assert_eq!(tell(&mut fence, 63_000, Input::Tick), given_up);
        assert_eq!(tell(&mut fence, 63_001, Input::Over), [Output::Kill]);
        assert_eq!(tell(&mut fence, 64_000, lease(67_000)), []);
    }
}
