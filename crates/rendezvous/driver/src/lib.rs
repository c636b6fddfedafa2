#![doc = include_str!("../README.md")]
//!
//! There are two entry points:
//!
//! * **Workers** pass an init-method URL, and receive a store, a rank and a world size ([`url`]).
//! * **Agents** pass the parameters of a backend, and receive a [`RendezvousInfo`] for each round
//!   ([`RendezvousBackend`]).
//!
//! A [`BackendRegistry`] contains the backends. [`StaticRendezvous`] uses fixed ranks. The backends
//! in [`dynamic`] and [`etcd`] allow nodes to join and leave.

#![warn(clippy::missing_errors_doc)]

mod backend;
mod bind;
pub mod dynamic;
mod environment;
mod error;
pub mod etcd;
mod event;
pub mod fence;
mod fixed;
mod group_status;
mod kept;
mod params;
mod rdzv_conf;
mod recording;
mod registry;
mod report_exchange;
mod runtime;
mod slots;
pub mod url;

pub use backend::{
    Change, ExitBarrier, Interrupter, JoiningAgent, Observer, RendezvousBackend, RendezvousInfo,
};
pub use dynamic::C10dRendezvous;
pub use environment::Environment;
pub use error::RendezvousError;
pub use event::{GroupEvent, NodeState, Recorder, RendezvousEvent};
pub use fixed::{StaticParameters, StaticRendezvous};
pub use group_status::{GroupReport, GroupStatus, Onlookers};
pub use kept::Kept;
pub use params::RendezvousParameters;
pub use rdzv_conf::RendezvousConfig;
pub use rdzv_rendezvous_proto::coordinator::wire::Program;
pub use rdzv_rendezvous_proto::{AgentNote, Death};
pub use registry::{BackendConstructor, BackendRegistry};
pub use report_exchange::ReportExchange;
