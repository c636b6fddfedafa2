//! Backends and their parts over loopback.
//!
//! They are in one test program, because each program would link the whole crate.

mod c10d_state;
mod fixed;
mod native_conversation;
mod nothing_there;
mod recording;
mod silent_leader;
#[allow(dead_code, reason = "each program uses a part of it")]
#[path = "../support/mod.rs"]
mod support;
mod urls;
