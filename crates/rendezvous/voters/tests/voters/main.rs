//! Voters in a simulated world.
//!
//! Messages take time, processes are killed, and networks are cut.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod deaths;
mod failover;
mod open;
mod random;
mod view;
mod world;
