//! A consensus group, and clients that count with it.
//!
//! ```text
//!   client ──add, read──► process: counters, Consensus ══ frames, cut, late, twice ══ process …
//!          ◄──value─────                 ▲
//!                                the next step of the group, by its leader
//! ```
//!
//! Processes are killed, between any two outputs and with or without their machine, and restart as
//! other members. They pause, or end cleanly. Connections are reset. Networks are cut one way, in
//! halves, into chains and around a hub. Frames are lost, doubled and overtake each other. Clocks
//! are up to 5 % fast or slow. A majority of voters stays alive, because nothing survives the loss
//! of a majority. In the second half all faults end, and the group must settle. Then the leader of
//! a group of three or more is killed once more, and the others must continue immediately.
//!
//! | file | contents |
//! |---|---|
//! | [`plan`] | the events that a seed allows |
//! | [`world`] | virtual time and its events |
//! | `acts.rs` | faults |
//! | `network.rs` | connections between processes |
//! | `process.rs` | one process: the driver of its machine |
//! | `counters.rs` | the replicated state |
//! | `client.rs`, `clients.rs` | the clients that count |
//! | [`ledger`], `settled.rs` | invariants after every step, and in the end |
//! | [`hostile`] | members that lie |
//!
//! The invariants INV-Q1 to INV-Q7 are those of `rdzv_consensus`. [`history`](crate::history)
//! checks that the clients saw a linearizable history.

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

use crate::Result;
use crate::trace::Trace;
use plan::Plan;
use world::{Report, World};

/// Runs a plan to its end. A refused message is a violation too.
pub fn run(plan: Plan, seed: u64, trace: Trace) -> Result<Report> {
    World::new(plan, seed, trace).run()
}
