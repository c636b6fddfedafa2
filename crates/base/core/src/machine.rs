//! The contract between a driver and a machine.
//!
//! Every machine of rdzv has this form:
//!
//! ```text
//!   driver ── handle(now, input) ──► machine
//!   driver ◄── poll_output()* ────── machine     drained to `None` before the next `handle`
//!   driver ◄── deadline() ────────── machine     "call me again at this time at the latest"
//! ```
//!
//! 1. [`Now`] carries a monotonic and a wall time. A machine has no other clock.
//! 2. After each `handle`, the driver drains the outputs to `None` before the next `handle`. Debug
//!    builds assert it through [`Outbox`].
//! 3. `handle` never fails. A bad input produces an output that reports it, never a panic and never
//!    a lost error.
//! 4. Outputs are commands and facts, not closures. They derive `Debug`, so a run can be printed.
//! 5. A machine has one owner; other threads send it messages. The exception is a machine that
//!    every thread of a process enters with typed calls (remote references). One lock protects it.
//!    Each call takes the lock, calls the machine, drains its outputs and releases the lock before
//!    it applies them. Nothing waits and no user code runs under that lock.
//! 6. Randomness is an input, or a seed in the configuration.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::time::{Mono, Now};

/// A state machine that a driver runs and that does no I/O.
pub trait Machine {
    /// An event: bytes arrived, a worker exited, time passed.
    /// It may borrow from the driver.
    type Input<'a>;
    /// An action: send bytes, start workers, report.
    type Output: Debug;

    /// Passes an event to the machine, with the time at which it happened.
    fn handle(&mut self, now: Now, input: Self::Input<'_>);

    /// Returns the next action, in order; `None` if there is none left.
    fn poll_output(&mut self) -> Option<Self::Output>;

    /// Returns the time of the next call that the machine needs without an event.
    fn deadline(&self) -> Option<Mono>;
}

/// The queue of outputs inside a machine.
/// In debug builds it asserts that the driver drains it in time.
#[derive(Debug)]
pub struct Outbox<T> {
    queue: VecDeque<T>,
}

impl<T> Default for Outbox<T> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
        }
    }
}

impl<T: Debug> Outbox<T> {
    /// Queues one output.
    pub fn push(&mut self, output: T) {
        self.queue.push_back(output);
    }

    /// Takes the oldest output.
    pub fn pop(&mut self) -> Option<T> {
        self.queue.pop_front()
    }

    /// Asserts rule 2 of the contract. Every `handle` starts with this call.
    pub fn assert_drained(&self) {
        debug_assert!(
            self.queue.is_empty(),
            "the driver called handle() before it drained the outputs: {:?}",
            self.queue
        );
    }
}
