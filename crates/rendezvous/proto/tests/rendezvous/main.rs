//! Dynamic rendezvous over a store: the decisions and the machine of one agent.
//!
//! The tables are in `tests/tables`. The top of each explains its lines.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod decisions;
mod properties;
mod scripts;

mod text;
