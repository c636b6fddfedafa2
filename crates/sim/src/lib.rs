//! Simulated worlds for the protocol machines, each under one seed.
//!
//! [`agents`] is the world of agents that find one another at a coordinator or over a shared state,
//! [`consensus`] that of a group of voters and clients that count with it, [`fence`] that of nodes that are cut off, [`references`] that of workers that refer to one another's values; the rest is that of the store
//! server's machine: clients, links and faults.
//!
//! ```text
//!   client ──requests──► link ──pieces, late──► machine      one event at a time,
//!   client ◄──replies─── link ◄──as far as there is room──   in order of virtual time
//! ```
//!
//! Clients behave as PyTorch's do (one question at a time, cancelling waits in their own time) and
//! as they should not (asking without reading, leaving in the middle of a request). Links cut the
//! streams anywhere, delay them, take replies slowly, and break. Nothing here knows a real clock
//! or socket; the same seed gives the same run.
//!
//! | file | what |
//! |---|---|
//! | [`history`] | whether what clients and agents saw is linearizable, in all worlds |
//! | [`report`] | the totals of a run of agents |
//! | [`scheduler`], [`trace`] | virtual time, events and what is shown of them, in all worlds |
//! | [`world`] | virtual time, events, what clients do; the driver of the machine |
//! | [`link`] | one connection's two directions |
//! | [`client`] | what clients ask, and what they make of the answers |
//! | [`key_operation`] | operations whose order is looked for |
//! | [`ledger`] | what must be true of all answers together |
//!
//! Invariants: **INV-S1** compare-and-set has one winner per version. **INV-S2** a wait that is
//! satisfied is answered, and exactly once. **INV-S3** replies come in the order of requests.
//! **INV-S4** memory stays within the limit. **INV-S5** a multi-set is seen whole or not at all.
//! **INV-S6** an entry of a queue is taken once, and in order. **INV-L1** what clients of a key
//! saw, and the agents of a run, is linearizable.

pub mod agents;
pub mod client;
pub mod consensus;
pub mod fence;
pub mod history;
pub mod key_operation;
pub mod ledger;
pub mod link;
pub mod references;
pub mod report;
pub mod rules;
pub mod scheduler;
pub mod trace;
pub mod world;

/// What is wrong with a run: the invariant and what was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation(pub String);

/// Fails with this description.
fn broken<T>(what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation(what.into()))
}

/// Runs the world of a seed to its end.
pub fn run(seed: u64, trace: trace::Trace) -> Result<world::Report, Violation> {
    world::World::new(seed, trace).run()
}
