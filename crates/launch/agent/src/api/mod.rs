//! The library's door to the agent, in the words of PyTorch's torchelastic.
//!
//! ```text
//!   LaunchConfig ── launch ──────────┐
//!                                    ▼                    ┌── run ──────────► RunResult
//!   WorkerSpec ── build ──► LocalElasticAgent ──────┐     │                   (or WorkerGroupFailure)
//!                           (processes of this node) ├► ElasticAgent
//!                 ┌───────► SimpleElasticAgent<S> ──┘     │
//!   your own S: WorkerSupervisor (start, monitor,         └── worker_group ──► WorkerGroup
//!                          stop, shut down)                                    (a snapshot)
//! ```
//!
//! * A [`WorkerSpec`] says what the workers of one node are: their [`WorkerEntrypoint`] (a command,
//!   a Python script or module, or a function of this program), how many, how often they may be
//!   restarted, how the nodes find one another.
//! * [`LocalElasticAgent`] runs them as processes, with everything that the command line offers.
//! * Who wants other workers than processes (threads, jobs on another machine) writes a
//!   [`WorkerSupervisor`] of four methods and gives it to a [`SimpleElasticAgent`], which brings
//!   rendezvous, ranks, restarts and the exit barrier: both agents are driven by the same machine
//!   (`rdzv_agent_proto::group`).
//! * [`launch()`] is the shortest way: a configuration, an entry point, and the values that the
//!   workers returned by global rank, or why there are none.
//!
//! Which item of torchelastic each of these answers to is in `docs/torchelastic-api.md`.

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

pub use crate::requests::StopHandle;
pub use crate::{RoundStore, StartRequest, SupervisorError, WorkerId};

/// The state of a worker group, under the names and numbers that torchelastic gives them.
pub use rdzv_agent_proto::group::GroupState as WorkerState;
