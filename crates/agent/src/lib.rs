//! The elastic agent of one node: starts the workers, watches them, restarts or stops the group,
//! and says what happened.
//!
//! [`run`] takes a [`LaunchPlan`] and returns an [`Outcome`]; everything that happens in between is
//! one stream of [`AgentEvent`]s. [`keep`] is the process around it: whatever happens to the agent,
//! nothing that it started is left behind.
//!
//! ```text
//!   keeper (keep)                  what the user started; subreaper; forwards signals
//!     └─ agent (run)               own session; dies with the keeper; subreaper; decides
//!          ├─ worker 0             own session and process group; dies with the agent
//!          │    └─ its children    die with the group, or are collected as orphans
//!          └─ worker 1
//! ```
//!
//! The decisions are made in `rdzv_agent_proto::group`; this crate carries them out. Reading order:
//! `agent` (the loop), `effects` (one function per decision), then `spawn`, `exits`, `stop` and
//! `reap` (processes), `meeting` (rendezvous and ranks), `logs`, `error_file`, `ending`. What is made of the events is in
//! [`observe`].

mod agent;
pub mod api;
mod clock;
mod control_group;
mod effects;
mod ending;
mod error;
mod error_file;
mod event;
mod exits;
mod hang;
pub mod health;
pub mod host;
mod job_control;
mod keeper;
mod logs;
mod meeting;
mod memory;
mod news;
pub mod observe;
mod outcome;
mod plan;
mod preview;
mod reap;
mod signals;
mod spawn;
mod stop;
pub mod topology;
mod uninterruptible;
mod verdict;

pub use agent::run;
pub use error::AgentError;
pub use error_file::{write_launcher_error_file, write_refusal_to_error_file};
pub use event::{
    AgentEvent, EventSource, NodeState, WatchdogAction, WatchdogTimer, WorkerFiles, WorkerIdentity,
};
pub use hang::{HangAction, HangPlan, HangReport, HeartbeatPlan};
pub use keeper::{end_like, is_kept, keep, launcher_pid};
pub use logs::write_own_lines;
pub use outcome::Outcome;
pub use plan::{
    Entrypoint, LaunchPlan, LogBase, LogPlan, MasterPort, RankSelection, RendezvousPlan,
    StreamSelection,
};
pub use preview::{WorkerPreview, preview};
pub use rdzv_agent_proto::group::{Cause, ErrorFile, Evidence, Exit, Failure};
pub use verdict::Verdict;
