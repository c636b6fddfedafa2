//! Rendezvous: agreeing on who takes part and in which order.
//!
//! Two doors. **Workers** come with an init-method URL and leave with a store, a rank and a world
//! size ([`url`]). **Agents** come with the parameters of a backend and leave with a
//! [`RendezvousInfo`], round after round ([`RendezvousBackend`]); the backends are in a
//! [`BackendRegistry`]: [`StaticRendezvous`], where everybody's rank is given, and those of
//! [`dynamic`] and [`etcd`], where nodes come and go.

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
mod runtime;
mod slots;
pub mod url;

pub use backend::{
    Change, ExitBarrier, Interrupter, Member, Observer, RendezvousBackend, RendezvousInfo,
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
