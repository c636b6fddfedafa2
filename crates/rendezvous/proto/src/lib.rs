#![doc = include_str!("../README.md")]
//!
//! Agents form a new round after most changes of the nodes.
//!
//! ```text
//!              first node           min nodes came: last call        deadline, or max nodes came
//!   (nothing) ───────────► forming ────────────────────► last call ──────────────► complete
//!                            ▲ round + 1: every participant has left                   │
//!                            └─────────────────────────────────────────────────────────┘
//!                     any time: closed, never open again
//! ```
//!
//! * [`state`]: the state that all agents of a run share; [`settings`]: node counts and timeouts.
//! * [`coordinator`]: decides for all native agents, inside a store server of rdzv;
//!   [`native_client`]: the agent's side of the connection to it.
//! * [`codec`]: the state as a pickle (`rdzv-pickle`), which torchrun's agents read and write too.
//! * [`decide`]: the next action of an agent, and its reason; [`apply`]: the effect of that action
//!   on the state; [`ranks`]: the ranks of a complete round; [`expected`]: the nodes that a round
//!   still expects after a change.
//! * [`fence`]: the lease of a node, and the suspension of its workers at the end of the lease.
//! * [`silence`]: the detection of a lost machine that closes no connection.
//! * [`group`]: a view of the voters and the coordinator, for status reports.
//! * [`AgentNote`]: the record of an agent, which survives its process.
//! * [`waiting`], [`last_call`]: messages while a round waits for the nodes that it needs, and for
//!   further nodes.
//! * [`participant`]: the machine of an agent that shares the state with others in any store.
//!
//! The crate `rdzv-rendezvous` drives these machines.
//!
//! Invariants, cited by the tests: *INV-R1* at most one rank assignment per round; *INV-R2* two
//! live participants never hold the same rank in the same round; *INV-R3* a complete round has
//! between min and max nodes; *INV-R4* a closed rendezvous admits no node; *INV-R5* without faults
//! every node joins before the join timeout.

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
pub use state::{NodeDesc, RendezvousState};
