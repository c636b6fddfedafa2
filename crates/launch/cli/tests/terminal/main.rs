//! Tests of `rdzv run` with real programs on a pseudo-terminal.

#![allow(
    clippy::unwrap_used,
    reason = "test code: a test ends at the first unexpected result"
)]

mod alone;
mod bars;
mod flood;
mod job;
mod keys;
mod lines;
mod nodes;
mod pagers;
mod screens;
mod streams;
mod waits;
