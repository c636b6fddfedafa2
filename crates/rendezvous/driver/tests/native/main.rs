//! Native rendezvous over real sockets: a hosting store server, and agents.
//!
//! All are in one process.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod agents;
mod changes;
mod keep_alive;
mod rounds;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod waiting;
