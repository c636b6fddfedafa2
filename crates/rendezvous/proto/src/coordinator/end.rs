//! The end of a connection, and when it proves that the agent's process has ended.
//!
//! A closed connection may only have broken, so an agent has
//! [`REATTACH_WITHIN`](super::REATTACH_WITHIN) to reattach. An agent that does not is lost *by
//! silence*: its workers may be running. It has *certainly ended* if
//!
//! 1. the stream of its connection has ended in order (an end of stream, no reset, no time limit of
//!    the kernel),
//! 2. it has not sent [`Detach`](super::wire::Operation::Detach) before, which announces that a
//!    live agent closes the connection,
//! 3. the connection comes from the address and port that the agent's own kernel gives it
//!    ([`Join::from`](super::wire::Join::from)).
//!
//! These conditions are enough:
//!
//! * A cut cable and a machine without power send nothing. A kernel that drops a connection because
//!   nothing is acknowledged ends it without an end of stream, on both sides. So only the owner of
//!   the other end can send an end of stream.
//! * By condition 3 that owner is the agent's kernel. A proxy, a tunnel or a sidecar has a separate
//!   connection to the coordinator, with a separate address or at least a separate port. A
//!   translator of addresses ends no streams. A packet filter ends connections by resets or by
//!   dropping them.
//! * A kernel ends a stream when the last descriptor of the connection is closed. No other process
//!   has one: it is closed in each program that is started. So the process has closed it or has
//!   ended.
//! * The driver of an agent that sends [`Join::from`](super::wire::Join::from) closes the
//!   connection only after `Detach`, in the same stream. If `Detach` could not be written, or a
//!   thread panics, the driver resets the connection, and a reset proves nothing
//!   (`native/link.rs`).
//!
//! The kernel kills the workers of such an agent when the agent ends, before or soon after it sends
//! the end of the stream. They have ended [`WORKERS_END_WITHIN`] after it has arrived, and the
//! coordinator notifies other agents after [`LOST_AFTER_END`]. That is the one assumption about
//! time. It does not hold for a worker that has changed its user, which loses its death signal, nor
//! for one that the kernel cannot end (state D).
//!
//! The proof allows the other nodes to continue without the agent, as a message of its successor
//! does: the round is torn (`runs/silent.rs`), and where agents have a fence, the coordinator does
//! not wait for the end of its lease. The proof does not show that a coordinator in that process
//! has ended. Earlier versions, agents of torchrun, and agents in a process with other purposes,
//! which may share its descriptors, do not send the address that they connect from.

use std::time::Duration;

use crate::Rule;
use rdzv_core::rules::Rules;

/// Time from the end of an agent's process to the end of its workers.
///
/// The kernel kills them for it.
pub const WORKERS_END_WITHIN: Duration = Duration::from_millis(50);

/// Time from the end of an agent's process until the agent is lost.
///
/// In most cases, an agent that its keeper starts in its place has connected by then. Then the
/// other nodes need not form a round without that node, and another one with it. The loss has to be
/// known within 110 ms.
pub const LOST_AFTER_END: Duration = Duration::from_millis(90);

/// The known facts about the end of one connection of an agent.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The address and port from which the agent has connected.
    ///
    /// `None` if the agent does not send `Detach` before it closes a connection.
    from: Option<String>,
    /// `true` if the agent has announced that it closes the connection and lives.
    pub(super) is_said: bool,
    is_of_process: bool,
}

impl End {
    /// Creates the state for a connection over which an agent has sent `from`.
    pub(super) fn of(from: Option<&str>) -> Self {
        Self {
            from: from.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Records that the stream has ended in order; the connection comes from `peer`.
    pub(super) fn of_stream(&mut self, peer: Option<&str>, rules: Rules<Rule>) {
        let is_same = peer == self.from.as_deref() || !rules.has(Rule::ProxyProvesNothing);
        self.is_of_process = self.from.is_some() && !self.is_said && is_same;
    }

    /// `true` if the end proves that the agent's process has ended.
    pub(super) fn is_of_process(&self, rules: Rules<Rule>) -> bool {
        let is_reset = self.from.is_some() && !self.is_said;
        self.is_of_process || is_reset && !rules.has(Rule::ResetProvesNothing)
    }
}
