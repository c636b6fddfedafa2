//! The totals of a run of agents, over a shared state or over a coordinator, and its limits.

use std::time::Duration;

/// How long after everything that is planned all must have come together again: the last call, the
/// time after which nodes are lost, stopping workers, and joining once more because of each.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(240);

/// Events of one agent in a second of virtual time, on average; more is a busy loop.
pub(crate) const BUSY: u64 = 400;

/// The totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Agents.
    pub agents: u64,
    /// Events.
    pub events: u64,
    /// Rounds that were completed.
    pub rounds: u64,
    /// Times that an agent joined.
    pub joined: u64,
    /// Operations that arrived at the coordinator; 0 over a shared state.
    pub operations: u64,
    /// Operations of agents whose order was looked for; 0 over a shared state.
    pub ordered: u64,
    /// Reads of the shared state; 0 over a coordinator.
    pub reads: u64,
    /// Writes of the shared state that were tried; over a coordinator, those of torchrun agents.
    pub tried: u64,
    /// Writes that won.
    pub won: u64,
    /// When the last agent joined.
    pub last_joined: Duration,
    /// Virtual time that passed.
    pub elapsed: Duration,
}
