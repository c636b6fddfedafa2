//! The verdict on a run: which failure came first, why, and what only followed from it.
//!
//! ```text
//!   ends of workers ── ending ──► WorkerFailure × n ─┐
//!   error of the agent ──────────────────────────────┼─► judge ──► Verdict ──► event stream
//!   records of other nodes ──────────────────────────┘
//! ```
//!
//! * `local` is what this node knows of its own failures, says of them and hears of others'.
//! * `listener` keeps the last words of workers that share the agent's stderr.
//! * `circumstances` explains the ends of workers that said nothing.
//! * `lost` is about nodes that have vanished without a word.
//! * `judge` puts the failures of this node and of others in order.
//!
//! Causes are found out in `rdzv_agent_proto::group::diagnosis`, and written down as
//! `rdzv_agent_proto::group::record` has it.

mod circumstances;
mod judge;
mod listener;
mod local;
mod lost;

use rdzv_agent_proto::group::record::FailureRecord;

pub(crate) use judge::of_worker;
pub(crate) use listener::Listener;
pub(crate) use local::{Heard, MOST_TOLD};
pub(crate) use lost::LostNode;

/// What is known of the failures of a run when it ends.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// The first failure of the job, as far as this node knows; `None` if nothing has failed.
    pub first: Option<FailureRecord>,
    /// Whether that was on this node.
    pub here: bool,
    /// The first failure and all of this node, in their order.
    pub failures: Vec<JudgedFailure>,
    /// How many restarts were used.
    pub restart_count: u32,
}

/// One failure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JudgedFailure {
    /// What is known of it.
    pub record: FailureRecord,
    /// True if another failure came first.
    pub secondary: bool,
}
