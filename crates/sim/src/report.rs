//! Totals of a run of agents, and its limits.
//!
//! The agents use a shared state or a coordinator.

use std::time::Duration;

/// Maximum time until all agents are together.
///
/// It begins two last-call timeouts after the last planned event. It covers the time after which
/// nodes are lost, the stop of the workers, and one more join because of each.
pub(crate) const SETTLED_AFTER: Duration = Duration::from_secs(240);

/// Maximum average number of events of one agent in a second of virtual time.
///
/// More events are a busy loop.
pub(crate) const BUSY: u64 = 400;

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of agents.
    pub agents: u64,
    /// Number of events.
    pub events: u64,
    /// Number of completed rounds.
    pub rounds: u64,
    /// Number of times that an agent joined.
    pub joined: u64,
    /// Operations that arrived at the coordinator; 0 over a shared state.
    pub operations: u64,
    /// Agent operations that were checked for their order; 0 over a shared state.
    pub ordered: u64,
    /// Reads of the shared state.
    ///
    /// With a coordinator, these are the reads of torchrun agents.
    pub reads: u64,
    /// Attempted writes of the shared state.
    ///
    /// With a coordinator, these are the writes of torchrun agents.
    pub tried: u64,
    /// Writes that won.
    pub won: u64,
    /// Time at which the last agent joined.
    pub last_joined: Duration,
    /// Virtual time that passed.
    pub elapsed: Duration,
}
