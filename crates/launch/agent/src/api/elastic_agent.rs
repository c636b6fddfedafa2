//! Interface of every agent.

use super::{RunError, RunResult, WorkerGroup};

/// Manager of one node's workers from the first rendezvous to the end.
///
/// An agent is made for one role. Implement this trait for a completely different agent.
/// Alternatively, implement [`WorkerSupervisor`](super::WorkerSupervisor); a
/// [`SimpleElasticAgent`](super::SimpleElasticAgent) then does everything else.
pub trait ElasticAgent {
    /// Runs the worker group of `role` to its end and returns the result.
    /// The result has the values that the workers returned, or the failures after the last restart,
    /// each by global rank.
    ///
    /// # Errors
    ///
    /// Returns an error if the run failed for a reason other than its workers. Examples: no
    /// rendezvous, a program that cannot be started, a signal, or a role for which the agent has no
    /// workers.
    fn run(&mut self, role: &str) -> Result<RunResult, RunError>;

    /// Returns a copy of the current state of the workers of `role`.
    /// `None` if the agent has no workers of that role.
    fn worker_group(&self, role: &str) -> Option<WorkerGroup>;
}
