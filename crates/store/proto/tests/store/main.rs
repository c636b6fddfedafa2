//! Tests of the store server's machine, without I/O.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod bounds;
mod descriptors;
mod extension;
mod golden;
mod harness;
mod keyspace_model;
#[path = "../golden/recorded.rs"]
mod recorded;
mod replay;
mod segmentation;
mod turns;
mod waiting;
