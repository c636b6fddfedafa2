//! The silence of a machine: power is lost, a cable is cut, and no connection is closed.
//!
//! ```text
//!   coordinator ◄─ heartbeat ── agent         every L/4, and answered; L is `node_timeout`
//!   coordinator ── pulse ──► agent            nothing was heard of it for L/3
//!   kernel: it sends both again and again, and ends the connection if nothing is acknowledged for L/2
//! ```
//!
//! An agent and the coordinator in its own process need none of that: the agent sends a heartbeat
//! every `keep_alive_interval`.
//!
//! Only the kernel says that a machine is silent: it has sent something, and the other kernel has
//! acknowledged nothing for long. A process that is stopped, or gets no processor time, raises no
//! alarm, because its kernel acknowledges for it; it is missed by its heartbeats, after
//! `keep_alive_interval` times `keep_alive_max_attempt`.
//!
//! The agent is lost when its connection was ended so, it has not come back within
//! [`REATTACH_WITHIN`](crate::coordinator::REATTACH_WITHIN), and was not heard of for L: Linux
//! counts an outage that is over together with the next one. So a machine that is silent for less
//! is never lost. Agents notice the silence of the coordinator sooner, so that they are back at
//! another one before they could be missed there.

use std::time::Duration;

/// A machine may be silent for so long, if nothing is configured.
pub const NODE_TIMEOUT: Duration = Duration::from_secs(3);

/// And for no less: the kernel sends something again after 0.2 s.
pub const LEAST: Duration = Duration::from_millis(500);

/// Time between two heartbeats of an agent.
pub(crate) fn heartbeat(node_timeout: Duration) -> Duration {
    node_timeout / 4
}

/// The time without a word of an agent after which the coordinator sends it something, for its kernel to acknowledge.
pub(crate) fn pulse(node_timeout: Duration) -> Duration {
    node_timeout / 3
}

/// The kernel ends a connection if the other one has acknowledged nothing for so long.
pub(crate) fn unacknowledged(node_timeout: Duration) -> Duration {
    node_timeout / 2
}

/// The time without a word of the coordinator after which an agent asks it for one. After the same time again without an
/// answer, the other voters are asked.
pub(crate) fn ask(node_timeout: Duration) -> Duration {
    node_timeout / 3
}
