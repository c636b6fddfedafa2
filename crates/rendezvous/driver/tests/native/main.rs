//! Native rendezvous over real sockets: a store server that hosts, and agents in one process.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod agents;
mod changes;
mod keep_alive;
mod rounds;
mod waiting;
