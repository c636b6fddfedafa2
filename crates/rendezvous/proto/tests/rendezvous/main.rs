//! Dynamic rendezvous over a compare-and-set store: one agent's decisions and its machine.
//!
//! The tables are in `tests/tables`; what their lines mean is at their top.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

mod decisions;
mod properties;
mod scripts;

mod text;
