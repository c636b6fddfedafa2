#![doc = include_str!("../README.md")]
//!
//! [`run()`] takes an [`AgentConfig`] and returns an [`Outcome`]. In between it sends one stream of
//! [`AgentEvent`]s. [`launcher::keep`] runs the two processes around the agent.
//!
//! ```text
//!   keeper (keep)                  what the user started; subreaper; forwards signals
//!     └─ guard                     own session; subreaper; restarts a killed agent
//!          └─ agent (run)          own session; ends with the keeper; subreaper; decides
//!               ├─ worker 0             own session and process group; dies with the agent
//!               │    └─ its children    die with the group, or are reaped as orphans
//!               └─ worker 1
//! ```
//!
//! `rdzv_agent_proto::group` makes the decisions; this crate applies them. Reading order: `run`,
//! `agent_loop`, `supervisor` (the interface to workers), `processes` with `spawn`, `exits` and
//! `reap`, `rendezvous` (rendezvous and ranks), `logs`, `failure`.

#![warn(clippy::missing_errors_doc)]

/// Runs the examples in the documentation pages as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/hangs.md")]
#[doc = include_str!("../../../../docs/torchelastic-api.md")]
mod pages {}

mod agent_loop;
pub mod api;
mod beats;
mod clock;
pub mod config;
mod control;
mod control_group;
mod error;
mod error_file;
pub mod event;
mod exits;
mod failure;
mod hang;
pub mod health;
mod host;
mod host_name;
mod keeper;
pub mod launcher;
mod logs;
mod memory;
mod node_check;
pub mod observe;
pub mod outcome;
mod output_relay;
mod preview;
mod private_directory;
mod process_stat;
mod processes;
mod python;
mod reap;
mod rendezvous;
mod requests;
mod round_store;
mod run;
mod signal_copies;
mod signals;
mod spawn;
mod supervisor;
mod topology;
mod uninterruptible;
mod worker;

pub use config::AgentConfig;
pub use error::AgentError;
pub use event::AgentEvent;
pub use outcome::Outcome;
pub use run::run;
