//! `rdzv run` on a terminal: real programs on a pseudo-terminal, whose screen is read.

#![allow(
    clippy::unwrap_used,
    reason = "test code: a test ends at the first unexpected result"
)]

mod bars;
mod job;
mod keys;
mod lines;
mod streams;
