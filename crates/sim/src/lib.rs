//! Simulated worlds for the protocol machines; one seed drives each world.
//!
//! - [`agents`]: agents that form rounds at a coordinator or over a shared state.
//! - [`consensus`]: a group of voters, and clients that count with it.
//! - [`fence`]: nodes that are cut off.
//! - [`recovery`]: workers that recover in their processes.
//! - [`references`]: workers that refer to each other's values.
//! - [`world`]: the machine of the store server, with clients, links and faults.
//!
//! ```text
//!   client ──requests──► link ──pieces, late──► machine      one event at a time,
//!   client ◄──replies─── link ◄──as far as there is room──   in order of virtual time
//! ```
//!
//! Clients mostly behave like PyTorch's: they ask one question at a time and cancel waits. At times
//! they misbehave: they send many requests before they read, or leave in the middle of a request.
//! Links cut the streams anywhere, delay them, accept replies slowly, and break. No part uses a
//! real clock or socket, so the same seed gives the same run.
//!
//! | file | content |
//! |---|---|
//! | [`history`] | check that all clients and agents saw a linearizable history |
//! | [`report`] | the totals of a run of agents |
//! | [`scheduler`], [`trace`] | virtual time, events and their traces, in all worlds |
//! | [`world`] | virtual time, events, acts of clients; the driver of the machine |
//! | [`link`] | the two directions of one connection |
//! | [`client`] | the requests of clients, and the checks of answers |
//! | [`key_operation`] | operations that must be linearizable |
//! | [`ledger`] | invariants of all answers together |
//! | [`rules`] | rules that the tests break |
//!
//! Invariants: **INV-S1** Compare-and-set has one winner per version. **INV-S2** A satisfied wait
//! gets exactly one answer. **INV-S3** Replies arrive in the order of requests. **INV-S4** Memory
//! stays within the limit. **INV-S5** A multi-set is visible completely or not at all. **INV-S6**
//! An entry of a queue is taken at most once. **INV-L1** The history that the clients of a
//! key saw is linearizable, and so is that of the agents of a run.

pub mod agents;
pub mod client;
pub mod consensus;
pub mod fence;
pub mod history;
pub mod key_operation;
pub mod ledger;
pub mod link;
pub mod recovery;
pub mod references;
pub mod report;
pub mod rules;
pub mod scheduler;
pub mod trace;
pub mod world;

/// Violation of an invariant, with the observed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// Result of a step of a simulated world.
pub type Result<T = (), E = Violation> = std::result::Result<T, E>;

/// Fails with this description.
fn broken<T>(what: impl Into<String>) -> Result<T> {
    Err(Violation(what.into()))
}

/// Runs the world of a seed to its end.
pub fn run(seed: u64, trace: trace::Trace) -> Result<world::Report> {
    world::World::new(seed, trace).run()
}
