//! Workers on two hosts, and what becomes of the connections between them when one vanishes.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod machines;
mod stopped;
mod vanished;
#[path = "../support/worker.rs"]
mod worker;
