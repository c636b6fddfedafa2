//! How a run ended.

use rdzv_agent_proto::group::Failure;

/// How a run ended on this node.
#[derive(Debug)]
pub enum Outcome {
    /// All workers of this node exited with 0.
    Succeeded,
    /// Workers failed and no restarts were left.
    Failed {
        /// All failures of the last attempt in the order in which they were seen.
        failures: Vec<Failure>,
        /// Index of the first failure by exit time among those that the agent did not cause.
        root_cause: usize,
    },
    /// The agent was told to stop by a signal that it handles.
    Signalled {
        /// Its number.
        signal: i32,
        /// False if it came before the first worker was started.
        workers_started: bool,
    },
    /// The agent itself could not go on: no rendezvous, program not found, log directory unusable.
    Error(crate::AgentError),
}
