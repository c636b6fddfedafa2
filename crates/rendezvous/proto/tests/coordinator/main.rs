//! The coordinator of native rendezvous, driven without a network.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod changes;
mod elsewhere;
mod ended;
mod joins;
mod leases;
mod mixed;
mod reattach;
mod round;
mod silent;
mod success;
mod viewers;
mod world;
