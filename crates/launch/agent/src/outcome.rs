//! How a run ended.

use std::time::Duration;

use rdzv_agent_proto::group::{Failure, Finality};

/// How a run ended on this node.
#[derive(Debug)]
pub enum Outcome {
    /// All workers of this node exited with 0.
    Succeeded,
    /// Workers failed and no restart followed.
    Failed {
        /// All failures of the last attempt in the order in which they were seen; behind them, the first
        /// failure of the job if that was on another node.
        failures: Vec<Failure>,
        /// Index of the first failure of the job, which the verdict names too.
        root_cause: usize,
        /// The reason why no restart followed.
        finality: Finality,
    },
    /// The agent was told to stop by a signal that it handles.
    Signalled {
        /// Its number.
        signal: i32,
        /// False if it came before the first worker was started.
        workers_started: bool,
    },
    /// The scheduler takes the nodes away, and the workers were told ([`PreemptionPlan`](crate::PreemptionPlan)).
    Preempted {
        /// The number of the signal that said so, here or on another node.
        signal: i32,
        /// Time from the notice to the end of the workers.
        used: Duration,
        /// Whether all workers of this node have ended by themselves with 0, or as that signal or SIGTERM ends
        /// a process.
        in_order: bool,
    },
    /// The agent itself could not go on: no rendezvous, program not found, log directory unusable.
    Error(crate::AgentError),
}

/// What is known of the failures of a run when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The first failure of the job, as far as this node knows, and all of this node; empty if
    /// nothing has failed. All but the first are its consequences.
    pub failures: Vec<Failure>,
    /// Whether the first failure was on this node.
    pub here: bool,
    /// Number of restarts that were used.
    pub restart_count: u32,
    /// The reason why no restart followed the failure of workers here; `None` if none of them has failed for
    /// good.
    pub finality: Option<Finality>,
}

impl Verdict {
    /// The first failure of the job, as far as this node knows.
    pub fn first(&self) -> Option<&Failure> {
        self.failures.first()
    }

    /// Makes the first failure of the job the root cause of an outcome, also if it was on another node.
    pub(crate) fn decide(&self, outcome: &mut Outcome) {
        if let Outcome::Failed {
            failures,
            root_cause,
            ..
        } = outcome
            && !self.here
            && let Some(first) = self.first()
        {
            *root_cause = failures.len();
            failures.push(first.clone());
        }
    }
}
