//! What every agent offers to whoever uses it.

use super::{RunError, RunResult, WorkerGroup};

/// Manages the workers of one node from the first rendezvous to the end of the run.
///
/// Made for one role; implement it to be an agent entirely of your own, or implement
/// [`WorkerSupervisor`](super::WorkerSupervisor) and let a
/// [`SimpleElasticAgent`](super::SimpleElasticAgent) do everything else.
pub trait ElasticAgent {
    /// Runs the worker group of `role` to its end and says how that was: the values that its workers
    /// returned, or their failures once no restart was left, each by global rank.
    ///
    /// An error is what kept the agent itself from its work: no rendezvous, a program that cannot
    /// be started, a signal, or a role that it has no workers of.
    fn run(&mut self, role: &str) -> Result<RunResult, RunError>;

    /// How the workers of `role` are now: a copy, which does not change any more. `None` for a role
    /// that the agent has no workers of.
    fn worker_group(&self, role: &str) -> Option<WorkerGroup>;
}
