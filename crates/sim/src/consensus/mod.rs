//! A consensus group, and clients that count with it.
//!
//! ```text
//!   client ──add, read──► process: counters, Consensus ══ frames, cut, late, twice ══ process …
//!          ◄──value─────                 ▲
//!                                the next step of the group, by its leader
//! ```
//!
//! Processes are killed (between any two outputs, and with or without their machine) and start
//! again as other members, stand still, end in order; connections are reset; networks are cut one
//! way, in halves, into chains and around a hub; frames are lost, doubled and overtake one another;
//! clocks differ by 5 %. A majority of voters is left alive, because nothing is kept beyond a
//! majority. In the second half all faults end, and the group has to come to rest. Then the leader
//! is killed once more, and the others have to go on at once.
//!
//! | file | contents |
//! |---|---|
//! | [`plan`] | what a seed lets happen |
//! | [`world`] | virtual time, and what happens in it |
//! | `acts.rs` | faults |
//! | `network.rs` | connections between processes |
//! | `process.rs` | one process: the driver of its machine |
//! | `counters.rs` | the replicated state |
//! | `client.rs`, `clients.rs` | those who count |
//! | [`ledger`], `settled.rs` | what must be true after every step, and in the end |
//! | [`hostile`] | members that lie |
//!
//! The invariants INV-Q1 to INV-Q7 are those of `rdzv_consensus`; whether what clients saw is
//! linearizable decides [`history`](crate::history).

mod acts;
mod client;
mod clients;
mod counters;
pub mod hostile;
pub mod ledger;
mod network;
pub mod plan;
mod process;
mod settled;
pub mod world;

use crate::Violation;
use crate::trace::Trace;
use plan::Plan;
use world::{Report, World};

/// Runs a plan to its end. A machine that ends its process is a violation too.
pub fn run(plan: Plan, seed: u64, trace: Trace) -> Result<Report, Violation> {
    World::new(plan, seed, trace).run()
}
