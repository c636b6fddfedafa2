//! Elastic agent of one node.
//!
//! The agent starts the workers, watches them, restarts or stops the group, and reports every
//! event.
//!
//! [`run()`] takes an [`AgentConfig`] and returns an [`Outcome`]. In between it sends one stream of
//! [`AgentEvent`]s. [`keep`] runs the process around the agent: it cleans up everything that the
//! agent started, even if the agent is killed.
//!
//! ```text
//!   keeper (keep)                  what the user started; subreaper; forwards signals
//!     └─ agent (run)               own session; dies with the keeper; subreaper; decides
//!          ├─ worker 0             own session and process group; dies with the agent
//!          │    └─ its children    die with the group, or are reaped as orphans
//!          └─ worker 1
//! ```
//!
//! `rdzv_agent_proto::group` makes the decisions; this crate applies them. Reading order: `run`,
//! `agent_loop`, `supervisor` (the interface to workers), `processes` with `spawn`, `exits` and
//! `reap`, `rendezvous` (rendezvous and ranks), `logs`, `failure`. [`observe`] turns the events
//! into log lines, files and metrics.

mod agent_loop;
pub mod api;
mod clock;
mod config;
mod control_group;
mod error;
mod error_file;
mod event;
mod exits;
mod failure;
mod hang;
pub mod health;
pub mod host;
mod host_name;
mod keeper;
mod logs;
mod memory;
mod node_check;
pub mod observe;
mod outcome;
mod output_relay;
mod private_directory;
mod process_stat;
pub mod python;
mod rendezvous;

mod processes;
mod reap;
mod requests;
mod run;
mod signal_copies;
mod signals;
mod spawn;
mod supervisor;
pub mod topology;
mod uninterruptible;
mod worker;

/// Target of the log lines that repeat torchelastic's texts word for word.
/// Each such line describes something that is an event too.
pub const TORCHELASTIC: &str = "torchelastic";

pub use config::{
    AgentConfig, Entrypoint, LogBase, LogPlan, MasterPort, NodeCheckPlan, ObserveOptions,
    PlacementOptions, RankSelection, RendezvousOptions, RendezvousPlan, StreamSelection,
    WorkerPreview, preview,
};
pub use error::{AgentError, SupervisorError};
pub use error_file::{write_launcher_error_file, write_refusal_to_error_file};
pub use event::AgentEvent;
pub use hang::{HangAction, HangPlan, HangReport, HeartbeatPlan, WatchdogAction, WatchdogTimer};
pub use keeper::{
    AgentEnd, RestartReason, Service, end_like, is_kept, keep, keep_service, kept, launcher_pid,
};
pub use logs::{LiveView, ViewOptions, write_own_lines, write_own_output};
pub use outcome::{Outcome, Verdict};
pub use output_relay::OutputRelay;
pub use rdzv_agent_proto::group::{
    Cause, ErrorFile, Evidence, Exit, Failure, Finality, GroupIdentity, PreemptionPlan,
    RestartOptions, StartRequest, StopOptions,
};
pub use rdzv_rendezvous::{GroupEvent, GroupReport, GroupStatus, NodeState, ReportExchange};
pub use rendezvous::{RoundStore, exchange_ranks};
pub use run::{run, run_in_view};
pub use signals::when_signalled;
pub use worker::{WorkerFiles, WorkerIdentity, WorkerLocation};
