//! Process harness, ports and certificates for the tests of all crates.
//!
//! - [`program`], [`binary`], [`example`]: paths of programs, built if cargo runs the test
//! - [`Process`]: a running program with its output; waits are bounded; killed and reaped on drop
//! - [`Terminal`]: a program on a separate terminal, and the screen of that terminal
//! - [`Marker`]: all processes that descend from a program, found by an environment variable
//! - [`Words`]: arguments of a program, as one text or as a list
//! - [`Stream`]: the output of a program, read by a thread
//! - [`pids`]: signals, exits and states of processes, by process id
//! - [`free_port`]: a port that stays reserved until the test program ends
//! - [`TestAuthority`]: certificates in files
//! - [`hostile`]: attacks on a store server

#![allow(
    clippy::unwrap_used,
    reason = "test code: a test ends at the first unexpected result"
)]

mod certificates;
pub mod hostile;
mod marker;
pub mod pids;
mod port;
mod process;
mod programs;
mod stream;
mod terminal;
mod words;

use std::time::Duration;

pub use certificates::TestAuthority;
pub use marker::Marker;
pub use port::free_port;
pub use process::Process;
pub use programs::{binary, example, program};
pub use stream::{NoLine, Stream};
pub use terminal::Terminal;
pub use words::Words;

/// Time limit of one test step.
/// Even on a busy machine, no step takes longer, so reaching the limit is a failure.
pub const DEADLINE: Duration = Duration::from_secs(60);
