//! Agents that find one another: the machines of `rdzv_rendezvous_proto`, at a coordinator in a store or
//! over nothing but a store.
//!
//! ```text
//!   native agents ──operations──► links ──late, cut, reset──► coordinator ── keys
//!                 ◄──events────── links ◄──────────────────── coordinator     ▲
//!   torchrun agents ──read, write if unchanged──► late, lost, cut ────────────┘
//!                   ◄──answers, "it changed"────
//! ```
//!
//! At a coordinator, native agents and those of torchrun, which know only the state, may be mixed.
//! Over a store that does nothing by itself all agents know only the state. The plan of a seed lets
//! agents start, restart their workers, leave, crash with and without a word, come back as another
//! process, stall, lose the network without noticing, have connections reset, lose answers to
//! writes that won, and live by a clock that is wrong or jumps; and lets the coordinator itself
//! stall, or die at any of its outputs and be started again with its note.
//!
//! | file | what |
//! |---|---|
//! | [`plan`] | what a seed lets happen |
//! | [`world`] | virtual time, and what happens in it |
//! | `acts.rs` | what the plan does to agents |
//! | `inputs.rs` | what agents are told, and what they want done |
//! | `connections.rs` | the connections of native agents |
//! | `store.rs` | the store, and the coordinator in it |
//! | [`agent`] | one agent around its machine, native or of torchrun |
//! | `history.rs`, `record.rs` | the history of the run, as the agents see it |
//! | [`ledger`], `settled.rs` | what must be true after every step, and in the end |
//!
//! Invariants: **INV-R1** at most one rank assignment per round. **INV-R2** two nodes never hold
//! the same rank in the same round. **INV-R3** a complete round has between min and max nodes.
//! **INV-R4** a closed rendezvous admits nobody. **INV-R5** without faults everybody joins before
//! the join timeout, and nobody is counted as lost who is not; when faults have ended, everybody
//! who is left comes together again. **INV-N1** all native agents of a round are told the same
//! place where workers meet. **INV-N2** the ranks of workers follow those of the agents. **INV-N3**
//! all workers of two rounds never run at once, also when the coordinator is killed and started
//! again, with the agent in whose process it is, and without its note unless agents are silent
//! then. **INV-N4** a coordinator that was started again, with its note, ends no round of which
//! half is missing and nobody has left. **INV-L1** what agents at a coordinator were told is not
//! taken back: joins, leaves, closes and successes are linearizable
//! ([`history`](crate::history::run)).

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

use crate::Violation;
use crate::report::Report;
use crate::trace::Trace;
use plan::Plan;
use world::World;

/// Runs a plan to its end.
pub fn run(plan: Plan, seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan, seed, trace).run()
}
