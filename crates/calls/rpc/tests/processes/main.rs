//! Groups of which each worker is a process.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod arenas;
mod chains;
mod killed;
mod worker;
