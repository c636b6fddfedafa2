//! Agents that meet through a coordinator: the machines of `rdzv_rendezvous_proto::{coordinator, native_client}`,
//! with agents among them that know only the state under its key.
//!
//! ```text
//!   native agents ──operations──► links ──late, cut, reset──► host ── keys
//!                 ◄──events────── links ◄──────────────────── host     ▲
//!   torchrun agents ──read, write if unchanged──────────────────────────┘
//! ```
//!
//! The plan of a seed lets agents start, restart their workers, leave, crash with and without a word,
//! stall, lose the network without noticing, have connections reset; and lets the coordinator itself stall.
//!
//! | file | what |
//! |---|---|
//! | [`plan`] | what a seed lets happen |
//! | [`world`] | virtual time, and what happens in it |
//! | `acts.rs` | what the plan does to agents |
//! | `inputs.rs` | what agents are told, and what they want done |
//! | `connections.rs` | the connections of native agents |
//! | `store.rs` | the coordinator and its keys |
//! | [`agent`] | one agent around its machine, native or of torchrun |
//! | [`ledger`], `settled.rs` | what must be true after every step, and in the end |
//!
//! Invariants: INV-R1 to INV-R5 as in [`crate::rendezvous`]. **INV-N1** all native agents of a round are told the
//! same place where workers meet. **INV-N2** the ranks of workers follow those of the agents.

mod acts;
pub mod agent;
mod connections;
mod inputs;
pub mod ledger;
pub mod plan;
mod settled;
mod store;
pub mod world;

use crate::Violation;
use crate::trace::Trace;

use world::World;

use crate::report::Report;

/// Runs the plan of a seed to its end.
pub fn run(seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan::Plan::of_seed(seed), seed, trace).run()
}

/// So many native agents that start at once, and nothing that goes wrong.
pub fn run_many(agents: usize, seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan::Plan::of_many(agents), seed, trace).run()
}
