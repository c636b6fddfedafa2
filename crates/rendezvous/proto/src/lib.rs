//! Dynamic rendezvous: agents agree on who takes part, in which order, again after every change.
//!
//! ```text
//!              first node           min nodes came: last call        deadline, or max nodes came
//!   (nothing) ───────────► forming ────────────────────► last call ──────────────► complete
//!                            ▲ round + 1: every participant has left                   │
//!                            └─────────────────────────────────────────────────────────┘
//!                     any time: closed, for ever
//! ```
//!
//! * [`state`]: what is agreed on, the same for every agent; [`settings`]: how long to wait for
//!   what.
//! * [`coordinator`]: what a store server of ours does for agents that may ask it to be the one
//!   writer; [`native_client`]: the side of such an agent.
//! * [`codec`]: the state as all agents write it, Python's among them, as a pickle (`rdzv-pickle`).
//! * [`decide`]: what an agent does next, and why; [`apply`]: what that makes of the state;
//!   [`ranks`]: the numbers of a complete round; [`expected`]: when nobody else has to be waited
//!   for.
//! * [`fence`]: the lease of a node, and what stops its workers at the end of that.
//! * [`silence`]: how the loss of a machine is noticed that closes no connection.
//! * [`group`]: a group of voters and its coordinator, for those who ask how things stand.
//! * [`AgentNote`]: what is known of an agent after its death.
//! * [`waiting`], [`last_call`]: messages while a round waits for nodes, and for more than enough.
//! * [`participant`]: the machine of one agent over such a store.
//!
//! The crate `rdzv-rendezvous` drives these machines; the API of this crate follows its releases.
//!
//! Invariants, cited by the tests: *INV-R1* at most one rank assignment per round; *INV-R2* two
//! live participants never hold the same rank in the same round; *INV-R3* a complete round has
//! between min and max nodes; *INV-R4* a closed rendezvous admits nobody; *INV-R5* without faults
//! everybody joins before the join timeout.

mod agent_note;
pub mod apply;
pub mod codec;
pub mod coordinator;
pub mod decide;
pub mod expected;
pub mod fence;
mod field;
pub mod group;
pub mod last_call;
pub mod native_client;
pub mod participant;
pub mod ranks;
pub mod recovering;
mod rule;
pub mod settings;
pub mod silence;
pub mod slot;
pub mod state;
pub mod waiting;

pub use agent_note::{AgentNote, Death};
pub use participant::Participant;
pub use rule::Rule;
pub use settings::{FencePolicy, Settings};
pub use state::{Dialect, NodeDesc, RendezvousState};
