//! Contract between a driver and a state machine.
//!
//! Every [`Machine`] has this form:
//!
//! ```text
//!   driver ── handle(now, input) ──► machine
//!   driver ◄── poll_output()* ────── machine     drained to `None` before the next `handle`
//!   driver ◄── deadline() ────────── machine     "call me again at this time at the latest"
//! ```
//!
//! 1. [`Now`] carries a monotonic time and a wall-clock time. A machine has no other clock.
//! 2. After each `handle`, the driver drains the outputs to `None` before the next `handle`. Debug
//!    builds assert this through [`Outbox`].
//! 3. `handle` never fails. Invalid data from a peer produces an output that reports the data,
//!    unless the machine has ended. Invalid data causes no panic.
//! 4. Outputs are commands and facts, not closures. They implement `Debug`, so a run can be
//!    printed.
//! 5. A machine has one owner; other threads send it messages. INV-A5 in `ARCHITECTURE.md` lists
//!    the exceptions. One of them is the machine for remote references, which all threads of a
//!    process enter through typed calls. One lock protects it. Each call takes the lock, calls the
//!    machine, drains its outputs and releases the lock before it applies them. No thread waits or
//!    runs user code while it holds that lock.
//! 6. Randomness is an input, or a seed in the configuration.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::time::{Mono, Now};

/// State machine that a driver runs and that does no I/O.
pub trait Machine {
    /// Event, for example: bytes arrived, a worker exited, time passed.
    /// An event may borrow data from the driver.
    type Input<'a>;
    /// Action for the driver, for example: send bytes, start workers, report.
    type Output: Debug;

    /// Passes an event to the machine, with the time of the event.
    fn handle(&mut self, now: Now, input: Self::Input<'_>);

    /// Returns the next action, in order; `None` if no action is left.
    fn poll_output(&mut self) -> Option<Self::Output>;

    /// Returns the time by which the driver must call the machine again.
    /// `None` without a limit.
    fn deadline(&self) -> Option<Mono>;
}

/// Queue of outputs inside a machine.
/// Debug builds assert that the driver drains the queue before the next event.
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
    /// Appends an output to the queue.
    pub fn push(&mut self, output: T) {
        self.queue.push_back(output);
    }

    /// Removes and returns the oldest output.
    pub fn pop(&mut self) -> Option<T> {
        self.queue.pop_front()
    }

    /// Asserts rule 2 of the contract; every `handle` starts with this call.
    pub fn assert_drained(&self) {
        debug_assert!(
            self.queue.is_empty(),
            "the driver called handle() before it drained the outputs: {:?}",
            self.queue
        );
    }
}
