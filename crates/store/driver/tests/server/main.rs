//! Tests of the store server over real sockets.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

mod client;
mod crowd;
mod ends;
mod golden;
mod listening;
mod purge;
#[path = "../../../proto/tests/golden/recorded.rs"]
mod recorded;
#[path = "../../../proto/tests/store/replay.rs"]
mod replay;
