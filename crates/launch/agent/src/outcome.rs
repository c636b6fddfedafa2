//! Results of a run.

use std::time::Duration;

pub use rdzv_agent_proto::group::{Cause, ErrorFile, Evidence, Exit, Failure, Finality};

/// Result of a run on this node.
#[derive(Debug)]
pub enum Outcome {
    /// All workers of this node exited with 0, or the job ended without this node.
    Succeeded,
    /// Workers failed, and no restart followed.
    Failed {
        /// Failures of the last attempt, in the order of the agent's observation.
        /// The first failure of the job comes last if it was on another node.
        failures: Vec<Failure>,
        /// Index of the first failure of the job, which the verdict names too.
        root_cause: usize,
        /// Reason why no restart followed.
        finality: Finality,
    },
    /// A signal requested a stop.
    ///
    /// A [`StopHandle`](crate::api::StopHandle) counts as a signal.
    Signalled {
        /// Signal number.
        signal: i32,
        /// `false` if this agent has not started any worker.
        workers_started: bool,
    },
    /// The scheduler gave notice that it will take the nodes away.
    /// See [`PreemptionPlan`](crate::config::PreemptionPlan).
    Preempted {
        /// Number of the signal with which the scheduler gave notice.
        /// This node or another one received it.
        signal: i32,
        /// Time from the notice to the exit of the workers.
        used: Duration,
        /// `true` if all workers of this node exited in order after the notice.
        /// In order means exit code 0, or an exit because of the notice's signal or SIGTERM.
        in_order: bool,
    },
    /// The agent itself failed, or another node ended the run.
    /// Examples: no rendezvous, program not found, final failure of another node.
    Error(crate::AgentError),
}

/// Failures of a run, known when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// First failure of the job, then the other failures of this node.
    /// The first failure is the first that this node knows of. The other failures are its
    /// consequences. Empty after a success, a signal or a preemption.
    pub failures: Vec<Failure>,
    /// `true` if the first failure was on this node.
    pub here: bool,
    /// Number of restarts that this node has used.
    pub restart_count: u32,
    /// Reason why no restart followed the failure of workers here.
    /// `None` if no failure of workers here was final.
    pub finality: Option<Finality>,
}

impl Verdict {
    /// Returns the first failure of the job, as far as this node knows.
    pub fn first(&self) -> Option<&Failure> {
        self.failures.first()
    }

    /// Makes the first failure of the job the root cause of an outcome.
    /// This holds also if that failure was on another node.
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
