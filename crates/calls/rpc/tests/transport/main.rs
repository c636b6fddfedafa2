//! Every carrier through one contract, and the peers that are refused.

#![allow(clippy::unwrap_used, reason = "tests")]

mod certificates;
mod contract;
mod dead_peer;
mod pump;
mod refusals;
mod world;
