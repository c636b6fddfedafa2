//! The end of a connection, which may prove the end of the agent's process.
//!
//! A running agent's connection may close. Unless it has certainly ended, an agent that can
//! reattach then has at least [`REATTACH_WITHIN`](super::REATTACH_WITHIN) to do so. If it does not,
//! it is lost *by silence*, and its workers may still be running. The agent has *certainly ended*
//! if:
//!
//! 1. its connection's stream has ended cleanly, with an end of stream. A reset or a kernel timeout
//!    does not count.
//! 2. the agent has not sent [`Detach`](super::wire::Operation::Detach) before.
//! 3. the peer address of the connection is the address and port that the agent's kernel gave the
//!    connection ([`Join::from`](super::wire::Join::from)).
//!
//! These conditions are sufficient:
//!
//! * A cut cable and a machine without power send nothing. If a kernel receives no acknowledgement,
//!   it closes the connection without an end of stream, on both sides. So an end of stream comes
//!   from the machine at the other end of the connection.
//! * By condition 3, this is the agent's machine. A proxy, a tunnel or a sidecar has a separate
//!   connection to the coordinator, from another address or port. An address translator does not
//!   end streams. A packet filter resets connections or drops their packets.
//! * A kernel ends a stream when a process closes the last descriptor of the connection. No other
//!   process has a descriptor, because it is closed in each program that the agent starts. So the
//!   agent has closed the connection or has ended.
//! * If a live agent has sent [`Join::from`](super::wire::Join::from), its driver closes the
//!   connection cleanly only after `Detach`. Otherwise, for example when a thread panics, the
//!   driver resets the connection, and a reset proves nothing (`native/link.rs`).
//!
//! The kernel kills the workers of such an agent when the agent ends, before or soon after it sends
//! the end of stream. The workers have ended [`WORKERS_END_WITHIN`] after its arrival. The
//! coordinator notifies the other agents after [`LOST_AFTER_END`]. This is the only assumption
//! about time. It does not hold for a worker that has changed its user and so has lost its death
//! signal. It does not hold for a worker that the kernel cannot kill (state D) either.
//!
//! Like the report of a successor, the proof tears the round (`runs/silent.rs`), so the next round
//! can form without the agent. If agents have a fence, the coordinator does not wait for the end of
//! this agent's lease. The proof says nothing about a coordinator in that process. Agents
//! of torchrun do not send their address, and neither do agents in a process with other purposes,
//! which may share its descriptors.

use std::time::Duration;

use crate::Rule;
use rdzv_core::rules::Rules;

/// Time from the exit of an agent's process to the exit of its workers.
///
/// The kernel kills the workers.
pub const WORKERS_END_WITHIN: Duration = Duration::from_millis(50);

/// Time from the end of an agent's stream until the agent is lost.
///
/// In most cases, a successor on the same node attaches earlier. Then the other agents need not
/// form one round without the node and another round with it. The loss must be known within 80 ms.
pub const LOST_AFTER_END: Duration = Duration::from_millis(60);

/// Knowledge about the end of one connection of an agent.
#[derive(Debug, Default)]
pub(super) struct End {
    /// Address and port from which the agent has connected.
    ///
    /// `None` if the agent does not promise to send `Detach`.
    from: Option<String>,
    /// `true` if the agent has sent `Detach`: it closes the connection, but runs.
    pub(super) is_said: bool,
    is_of_process: bool,
}

impl End {
    /// Creates the state of a connection from the address that the agent reports.
    pub(super) fn of(from: Option<&str>) -> Self {
        Self {
            from: from.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Records that the stream from `peer` has ended cleanly.
    pub(super) fn of_stream(&mut self, peer: Option<&str>, rules: Rules<Rule>) {
        let is_same = peer == self.from.as_deref() || !rules.has(Rule::ProxyProvesNothing);
        self.is_of_process = self.from.is_some() && !self.is_said && is_same;
    }

    /// `true` if the end of the connection proves the end of the agent's process.
    pub(super) fn is_of_process(&self, rules: Rules<Rule>) -> bool {
        let is_reset = self.from.is_some() && !self.is_said;
        self.is_of_process || is_reset && !rules.has(Rule::ResetProvesNothing)
    }
}
