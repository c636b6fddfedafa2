//! Tests of every carrier with one contract, and of refused peers.

#![allow(clippy::unwrap_used, reason = "tests")]

mod certificates;
mod contract;
mod dead_peer;
mod pump;
mod refusals;
mod world;
