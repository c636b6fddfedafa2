//! Agents that meet over a compare-and-set store: the machine of `rdzv_rendezvous_proto`.
//!
//! ```text
//!   agents ──read, write if unchanged──► network ──late, lost, cut──► store
//!   agents ◄──answers, "it changed"───── network ◄─────────────────── store
//! ```
//!
//! Each agent runs a [`Participant`](rdzv_rendezvous_proto::Participant) and does what an agent does:
//! it joins, stops its workers and joins again when the membership changes, and goes when the run is
//! closed. The plan of a seed lets agents start, leave, crash, come back as another process, stall,
//! lose the network, lose answers to writes that won, and live by a clock that is wrong or jumps.
//!
//! | file | what |
//! |---|---|
//! | [`plan`] | what a seed lets happen |
//! | [`world`] | virtual time, and what happens in it |
//! | `acts.rs` | what the plan does to agents |
//! | `inputs.rs` | what agents are told, and what they want done |
//! | `network.rs` | the network and the store |
//! | [`agent`] | one agent around its machine |
//! | [`ledger`], [`settled`] | what must be true after every step, and in the end |
//!
//! Invariants: **INV-R1** at most one rank assignment per round. **INV-R2** two nodes never hold the same
//! rank in the same round. **INV-R3** a complete round has between min and max nodes. **INV-R4** a closed
//! rendezvous admits nobody. **INV-R5** without faults everybody joins before the join timeout, and
//! nobody is counted as lost who is not; when faults have ended, everybody who is left comes
//! together again.

mod acts;
pub mod agent;
mod inputs;
pub mod ledger;
mod network;
pub mod plan;
mod render;
pub mod settled;
pub mod world;

use crate::Violation;

use crate::trace::Trace;
use world::World;

use crate::report::Report;

/// Runs the plan of a seed to its end.
pub fn run(seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan::Plan::of_seed(seed), seed, trace).run()
}

/// Like [`run`], with so many agents.
pub fn run_with(agents: usize, seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan::Plan::of_seed_for(agents, seed), seed, trace).run()
}

/// So many agents that all start at once, and nothing that goes wrong.
pub fn run_many(agents: usize, seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan::Plan::of_many(agents), seed, trace).run()
}
