//! Signals by name and number, and the two that nobody can handle.

use rustix::process::Signal;

pub(crate) use rdzv_core::signal::{name, number};

/// Number of the signal that cannot be handled and ends a process.
pub(crate) const KILL: i32 = Signal::KILL.as_raw();

/// Number of the signal that cannot be handled and stops a process.
pub(crate) const STOP: i32 = Signal::STOP.as_raw();
