//! The interface of every agent.

use super::{RunError, RunResult, WorkerGroup};

/// Manages the workers of one node from the first rendezvous to the end.
///
/// An agent is made for one role. Implement this trait for a completely different agent. Or
/// implement [`WorkerSupervisor`](super::WorkerSupervisor), and let a
/// [`SimpleElasticAgent`](super::SimpleElasticAgent) do everything else.
pub trait ElasticAgent {
    /// Runs the worker group of `role` to its end and returns the result.
    /// The result has the values that the workers returned, or their failures once no restart was
    /// left, each by global rank.
    ///
    /// An error is what kept the agent itself from its work: no rendezvous, a program that cannot
    /// be started, a signal, or a role for which the agent has no workers.
    fn run(&mut self, role: &str) -> Result<RunResult, RunError>;

    /// Returns a copy of the current state of the workers of `role`.
    /// `None` if the agent has no workers of that role.
    fn worker_group(&self, role: &str) -> Option<WorkerGroup>;
}
