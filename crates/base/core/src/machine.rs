//! The driving contract: the one shape that every machine of this crate has.
//!
//! ```text
//!   driver ── handle(now, input) ──► machine
//!   driver ◄── poll_output()* ────── machine     drained to `None` before the next `handle`
//!   driver ◄── deadline() ────────── machine     "call me again at this time at the latest"
//! ```
//!
//! 1. [`Now`] carries a monotonic and a wall time. A machine has no other clock.
//! 2. After each `handle`, outputs are drained to `None` before the next `handle`; debug builds
//!    assert it through [`Outbox`].
//! 3. `handle` never fails: a bad input produces an output that says so, never a panic and never a
//!    lost error.
//! 4. Outputs are commands and facts, not closures. They derive `Debug`, so a run is a text.
//! 5. A machine has one owner; other threads send it messages. The exception is a machine that
//!    every thread of a process enters with typed calls (remote references): it stands behind one
//!    lock, and each call takes the lock, calls the machine, drains its outputs and releases the
//!    lock before it applies them. Nothing waits and no user code runs under that lock.
//! 6. Randomness is an input, or a seed in the configuration.

use std::collections::VecDeque;
use std::fmt::Debug;

use crate::time::{Mono, Now};

/// A state machine that is driven from outside and never touches the world itself.
pub trait Machine {
    /// What happened: bytes arrived, a worker exited, time passed. May borrow from the driver.
    type Input<'a>;
    /// What to do: send bytes, start workers, report.
    type Output: Debug;

    /// Tells the machine what happened at `now`.
    fn handle(&mut self, now: Now, input: Self::Input<'_>);

    /// The next thing to do, in order; `None` when there is nothing left.
    fn poll_output(&mut self) -> Option<Self::Output>;

    /// When the machine wants to be called again even if nothing happens.
    fn deadline(&self) -> Option<Mono>;
}

/// The queue of outputs inside a machine; asserts in debug builds that it is drained in time.
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

    /// To be called at the start of every `handle`: rule 2 of the contract.
    pub fn assert_drained(&self) {
        debug_assert!(
            self.queue.is_empty(),
            "the driver called handle() before it drained the outputs: {:?}",
            self.queue
        );
    }
}
