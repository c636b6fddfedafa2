//! Tests of connections between workers on two hosts when one host vanishes.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod machines;
mod stopped;
mod vanished;
#[path = "../support/worker.rs"]
mod worker;
