//! The elastic agent of one node: starts the workers, watches them, restarts or stops the group,
//! and says what happened.
//!
//! `run(plan, observer)` (see `agent`) takes a [`LaunchPlan`] and returns an [`Outcome`]; everything
//! that happens in between is one stream of [`AgentEvent`]s.

mod error;
mod event;
mod outcome;
mod plan;

pub use error::AgentError;
pub use event::{AgentEvent, EventSource, WorkerIdentity};
pub use outcome::{ErrorFile, Exit, Outcome, WorkerFailure};
pub use plan::{
    Entrypoint, LaunchPlan, LogBase, LogPlan, RankSelection, RendezvousPlan, StreamSelection,
};
