//! The end of a connection, which may prove the end of the agent's process.
//!
//! A closed connection may only have broken, so an agent has
//! [`REATTACH_WITHIN`](super::REATTACH_WITHIN) to come back, and one that does not is lost *by
//! silence*: its workers may run. It has *certainly ended* if
//!
//! 1. the stream of its connection has ended in order (an end of stream, no reset, no time limit of
//!    the kernel),
//! 2. it has not said before that it hangs up ([`Detach`](super::wire::Operation::Detach)),
//! 3. the connection comes from the address and port that the agent's own kernel gives it
//!    ([`Join::from`](super::wire::Join::from)).
//!
//! Why that is enough:
//!
//! * A cut cable and a machine without power send nothing. A kernel that gives a connection up
//!   because nothing is acknowledged ends it without an end of stream, here and there. So an end of
//!   stream is the word of whatever holds the other end.
//! * By 3 that is the agent's kernel. A proxy, a tunnel or a sidecar has a connection of its own to
//!   us, with an address or at least a port of its own. What only translates addresses ends no
//!   streams; what filters packets ends connections by resets or by dropping them.
//! * A kernel ends a stream when the last descriptor of the connection is closed. No other process
//!   has one: it is closed in each program that is started. So the process has closed it or has
//!   ended.
//! * The driver of an agent that says [`Join::from`](super::wire::Join::from) closes it only behind
//!   `Detach`, in the same stream; if that could not be written, or a thread panics, it resets the
//!   connection, and a reset proves nothing (`native/link.rs`).
//!
//! The workers of such an agent are killed by its kernel when it ends, before or soon after the end
//! of the stream is sent. They are gone [`WORKERS_END_WITHIN`] after it has come, and anybody is
//! told after [`LOST_AFTER_END`]. That is the one assumption about time. It does not hold for a
//! worker that has changed its user, which takes its death signal away, nor for one that the kernel
//! cannot end (state D).
//!
//! It is a proof for going on without the agent, as its successor's word is: the round is torn
//! (`runs/silent.rs`), and where agents have a fence, nobody waits for the end of its lease. It is
//! no proof that a coordinator in that process has ended. Agents of before, agents of torchrun, and
//! those in a process with other purposes, which may share its descriptors, do not say where they
//! are from.

use std::time::Duration;

use crate::Rule;
use rdzv_core::rules::Rules;

/// The time from the end of an agent's process to that of its workers, which the kernel kills for it.
pub const WORKERS_END_WITHIN: Duration = Duration::from_millis(50);

/// The time from the end of an agent's process until it is lost. An agent that its keeper starts in its place is there before, in
/// most cases: then the others need not form a round without that node, and another one with it. The loss is to be
/// known within 110 ms.
pub const LOST_AFTER_END: Duration = Duration::from_millis(90);

/// The end of one connection of an agent, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct End {
    /// The address and port from which the agent has connected, if it says before it hangs up that it lives.
    from: Option<String>,
    /// The agent hangs up, and lives.
    pub(super) is_said: bool,
    is_of_process: bool,
}

impl End {
    /// The end of a connection over which an agent says this.
    pub(super) fn of(from: Option<&str>) -> Self {
        Self {
            from: from.map(str::to_owned),
            ..Self::default()
        }
    }

    /// Records that the stream from `peer` has ended in order.
    pub(super) fn of_stream(&mut self, peer: Option<&str>, rules: Rules<Rule>) {
        let is_same = peer == self.from.as_deref() || !rules.has(Rule::ProxyProvesNothing);
        self.is_of_process = self.from.is_some() && !self.is_said && is_same;
    }

    /// Whether it proves the end of the agent's process.
    pub(super) fn is_of_process(&self, rules: Rules<Rule>) -> bool {
        let is_reset = self.from.is_some() && !self.is_said;
        self.is_of_process || is_reset && !rules.has(Rule::ResetProvesNothing)
    }
}
