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
//! * [`state`]: what is agreed on, the same for every agent; [`settings`]: how long to wait for what.
//! * [`words`]: what happens to one agent that shares the state with others through a
//!   compare-and-set store, and what it wants done.
//! * [`codec`]: the state as all agents write it, Python's among them.
//!
//! Invariants, cited by the tests: *R1* at most one rank assignment per round; *R2* two live
//! participants never hold the same rank in the same round; *R3* a complete round has between min
//! and max nodes; *R4* a closed rendezvous admits nobody; *R5* without faults everybody joins before
//! the join timeout.

pub mod codec;
pub mod settings;
pub mod state;
pub mod words;

pub use settings::Settings;
pub use state::{Dialect, NodeDesc, RendezvousState};
