//! Tests of `docs/rpc-scenarios.md` with one process for each worker.
//!
//! Each process begins like an application, with `init_rpc` and the variables that a launcher sets.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod arenas;
mod beginning;
mod calls;
mod chains;
mod devices;
mod ending;
mod forming;
mod idle;
mod killed;
mod lives;
mod membership;
mod pressure;
mod references;
mod time;
mod traces;
mod unauthenticated;
#[path = "../support/worker.rs"]
mod worker;
