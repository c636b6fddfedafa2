//! The verdict on a run: which failure came first, why, and what only followed from it.
//!
//! ```text
//!   ends of workers ── ending ──► Failure × n ─┐
//!   error of the agent ────────────────────────┼─► judge ──► Verdict ──► event stream
//!   failures of other nodes ───────────────────┘
//! ```
//!
//! * `local` is what this node knows of its own failures, says of them and hears of others'.
//! * `listener` keeps the last words of workers that share the agent's stderr.
//! * `circumstances` explains the ends of workers that said nothing.
//! * `lost` is about nodes that have vanished without a word.
//! * `judge` puts the failures of this node and of others in order.
//!
//! `rdzv_agent_proto::group` finds the causes and the first failure of this node.

mod circumstances;
mod judge;
mod listener;
mod local;
mod lost;

use rdzv_agent_proto::group::Failure;

pub(crate) use listener::Listener;
pub(crate) use local::{Heard, MOST_TOLD};
pub(crate) use lost::LostNode;

/// What is known of the failures of a run when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The first failure of the job, as far as this node knows, and all of this node; empty if
    /// nothing has failed. All but the first are its consequences.
    pub failures: Vec<Failure>,
    /// Whether the first failure was on this node.
    pub here: bool,
    /// Number of restarts that were used.
    pub restart_count: u32,
}

impl Verdict {
    /// The first failure of the job, as far as this node knows.
    pub fn first(&self) -> Option<&Failure> {
        self.failures.first()
    }
}
