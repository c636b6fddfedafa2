//! Agents that form rounds: the machines of `rdzv_rendezvous_proto`.
//!
//! The agents use a coordinator in a store, or only a store.
//!
//! ```text
//!   native agents ──operations──► links ──late, cut, reset──► coordinator ── keys
//!                 ◄──events────── links ◄──────────────────── coordinator     ▲
//!   torchrun agents ──read, write if unchanged──► late, lost, cut ────────────┘
//!                   ◄──answers, "it changed"────
//! ```
//!
//! At a coordinator, native agents and torchrun agents may be mixed; torchrun agents know only the
//! state. Over a store without a coordinator, all agents see only the rendezvous state. The plan of
//! a seed lets agents start, restart their workers, and leave. They crash with and without a
//! notice, and return as another process. They pause, lose the network unnoticed, and have
//! connections reset. They lose answers to writes that won, and have clocks that are wrong or jump.
//! The coordinator itself may pause, or die at any of its outputs and restart, with or without its
//! record.
//!
//! | file | content |
//! |---|---|
//! | [`plan`] | the events that a seed allows |
//! | [`world`] | virtual time and its events |
//! | `acts.rs` | acts of the plan on agents |
//! | `inputs.rs` | inputs of agents, and the actions that they request |
//! | `connections.rs` | the connections of native agents |
//! | `store.rs` | the store, and the coordinator in it |
//! | [`agent`] | one agent around its machine, native or of torchrun |
//! | `history.rs`, `record.rs` | the history of the run, as the agents see it |
//! | [`ledger`], `settled.rs` | invariants after every step, and in the end |
//!
//! Invariants: **INV-R1** A round has at most one rank assignment. **INV-R2** Two nodes never hold
//! the same rank in the same round. **INV-R3** A complete round has between min and max nodes.
//! **INV-R4** A closed rendezvous admits no agent. **INV-R5** Without faults, every agent joins
//! before the join timeout, and no live agent counts as lost. When faults have ended, all remaining
//! agents form a round again. **INV-N1** All native agents of a round receive the same endpoint of
//! the workers. **INV-N2** The ranks of workers follow those of the agents. **INV-N3** All workers
//! of two rounds never run at the same time. This also holds if the coordinator is killed with the
//! agent in whose process it is, and restarted. It holds without the coordinator's record too,
//! unless agents are silent then. **INV-N4** A coordinator that restarts with its record does not
//! end a round because at least half of its nodes are missing. Exceptions are a node that has left,
//! and `recover`. **INV-L1** The events that agents received from a coordinator stay true: joins,
//! leaves, closes and successes are linearizable ([`history`](crate::history::run)).

mod acts;
pub mod agent;
mod connections;
mod history;
mod inputs;
pub mod ledger;
pub mod plan;
mod record;
mod settled;
mod store;
pub mod world;

use crate::Result;
use crate::report::Report;
use crate::trace::Trace;
use plan::Plan;
use world::World;

/// Runs a plan to its end.
pub fn run(plan: Plan, seed: u64, trace: Trace) -> Result<Report> {
    World::new(plan, seed, trace).run()
}
