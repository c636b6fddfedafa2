//! Library interface to the agent, with the names of torchelastic.
//!
//! ```text
//!   LaunchConfig ── launch ──────────┐
//!                                    ▼                    ┌── run ──────────► RunResult, or
//!   WorkerSpec ── build ──► LocalElasticAgent ──────┐     │                   WorkerGroupFailure
//!                           (processes of this node) ├► ElasticAgent
//!                 ┌───────► SimpleElasticAgent<S> ──┘     │
//!   your own S: WorkerSupervisor (start, monitor,         └── worker_group ──► WorkerGroup
//!                          stop, shut down)                                    (a snapshot)
//! ```
//!
//! * A [`WorkerSpec`] specifies the workers of one node: their [`WorkerEntrypoint`], their number,
//!   the maximum number of restarts, and the kind of rendezvous. The entry point is a command, a
//!   Python script or module, or a function of this program.
//! * [`LocalElasticAgent`] runs them as processes, as `rdzv run` does.
//! * For workers that are not processes (threads, jobs on another machine), implement the four
//!   methods of [`WorkerSupervisor`] and pass it to a [`SimpleElasticAgent`]. The agent provides
//!   rendezvous, ranks, restarts and the exit barrier: the same machine (`rdzv_agent_proto::group`)
//!   drives both agents.
//!
//! [`launch()`] is the shortest way. It returns the values of this node's workers by global rank,
//! or the reason why there are none.
//!
//! `docs/torchelastic-api.md` lists the item of torchelastic to which each of these corresponds.

mod defaults;
mod elastic_agent;
mod entrypoint;
mod errors;
pub mod function;
mod launch;
mod local;
mod polled;
mod result;
mod simple;
mod spec;
mod supervisor;
mod worker;
mod worker_group;

pub use defaults::{DEFAULT_ROLE, Defaults, LAUNCH_ROLE};
pub use elastic_agent::ElasticAgent;
pub use entrypoint::WorkerEntrypoint;
pub use errors::{RunError, SpecError};
pub use function::WorkerFunctions;
pub use launch::{LaunchConfig, LaunchError, launch};
pub use local::LocalElasticAgent;
pub use result::{MonitorResult, ProcessFailure, RunResult, WorkerGroupFailure};
pub use simple::SimpleElasticAgent;
pub use spec::{EventHandler, WorkerSpec, WorkerSpecBuilder};
pub use supervisor::WorkerSupervisor;
pub use worker::Worker;
pub use worker_group::{StoreInfo, WorkerGroup};

pub use crate::error::SupervisorError;
pub use crate::requests::StopHandle;
pub use crate::round_store::RoundStore;
pub use crate::worker::WorkerLocation;
pub use rdzv_agent_proto::group::StartRequest;

/// State of a worker group, with torchelastic's names and numbers.
pub use rdzv_agent_proto::group::GroupState as WorkerState;
