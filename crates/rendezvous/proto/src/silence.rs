//! Detection of a silent machine, which closes no connection.
//!
//! A machine is silent after a power loss or with a cut cable, for example.
//!
//! ```text
//!   coordinator ◄─ heartbeat ── agent         at least every L/4, and answered; L: `node_timeout`
//!   coordinator ── pulse ──► agent            in a round, after L/3 without a message from it
//!   kernel: resends both, and ends the connection after L/2 without an acknowledgement
//! ```
//!
//! An agent and a coordinator in the same process do not need this. There, the agent sends a
//! heartbeat every `keep_alive_interval`.
//!
//! Only the kernel detects a silent machine: the other kernel has not acknowledged the sent data
//! for some time. A process that is stopped, or gets no processor time, is not silent in this
//! sense, because its kernel still acknowledges. The coordinator notices its missing heartbeats
//! after `keep_alive_interval` times `keep_alive_max_attempt`, at the earliest.
//!
//! The agent is lost if its connection ended in this way, it did not reattach within
//! [`REATTACH_WITHIN`](crate::coordinator::REATTACH_WITHIN), and its last message is older than L,
//! or than [`lost_after`](crate::fence::lost_after) with a fence. The condition about the last
//! message is necessary because Linux adds an earlier outage to the next one. So a
//! machine that is silent for less than L is not lost, unless `keep_alive_interval` times
//! `keep_alive_max_attempt` is shorter. Agents notice a silent coordinator sooner. If there are
//! voters, agents reattach to another coordinator before that coordinator could declare them lost.

use std::time::Duration;

/// Default time for which a machine may be silent.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(3);

/// Minimum time for which a machine may be silent.
///
/// The kernel resends data after 0.2 s.
pub const LEAST: Duration = Duration::from_millis(500);

/// Returns the time between two heartbeats of an agent.
pub(crate) fn heartbeat(node_timeout: Duration) -> Duration {
    node_timeout / 4
}

/// Returns the time after which the coordinator sends a quiet member a pulse.
///
/// The kernel of that agent must acknowledge the pulse.
pub(crate) fn pulse(node_timeout: Duration) -> Duration {
    node_timeout / 3
}

/// Returns the time without an acknowledgement after which a connection ends.
pub(crate) fn unacknowledged(node_timeout: Duration) -> Duration {
    node_timeout / 2
}

/// Returns the time after which an agent asks a quiet coordinator.
///
/// After the same time without an answer, the agent asks the other voters, if there are any.
pub(crate) fn ask(node_timeout: Duration) -> Duration {
    node_timeout / 3
}
