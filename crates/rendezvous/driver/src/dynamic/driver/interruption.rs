//! End of a join from outside.
//!
//! The agent interrupts the join, or the round ends before the join has returned.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use rdzv_lock::Mutex;
use rdzv_store::Breaker;

use super::command::Event;

/// State that the handle, its interrupters and the task share.
#[derive(Default)]
pub(super) struct Interruption {
    state: Mutex<State>,
    /// Breaker that ends the use of the shared state.
    end_of_state: Option<Breaker>,
    /// `true` if the shared state has ever answered.
    ///
    /// Otherwise this node is not in it.
    reached: AtomicBool,
}

#[derive(Default)]
struct State {
    interrupted: bool,
    /// `true` if the round that the join is about to return has ended.
    round_is_over: bool,
    /// Sender to the caller that waits for a round.
    waiting: Option<Sender<Event>>,
    /// Breaker of the wait for rank 0.
    reading: Option<Breaker>,
}

impl Interruption {
    /// Creates the value for a state whose use this breaker ends.
    pub(super) fn new(end_of_state: Option<Breaker>) -> Self {
        Self {
            end_of_state,
            ..Self::default()
        }
    }

    pub(super) fn has_reached(&self) {
        self.reached.store(true, Ordering::Release);
    }

    /// `true` if the interruption came before the first answer of the state.
    ///
    /// There is then nothing to leave, and no node to notify.
    pub(super) fn is_before_all(&self) -> bool {
        self.is_set() && !self.reached.load(Ordering::Acquire)
    }

    /// Starts a join that reports to `waiting`; `false` after an interruption.
    pub(super) fn begin(&self, waiting: Sender<Event>) -> bool {
        let mut state = self.state.lock();
        state.round_is_over = false;
        state.waiting = Some(waiting);
        !state.interrupted
    }

    /// Makes a wait for another agent's write interruptible while the guard exists.
    pub(super) fn reading(&self, breaker: Option<Breaker>) -> WhileReading<'_> {
        let mut state = self.state.lock();
        state.reading = breaker;
        if state.interrupted || state.round_is_over {
            state.break_reading();
        }
        WhileReading(self)
    }

    /// Interrupts the join and all later ones.
    pub(super) fn interrupt(&self) {
        let mut state = self.state.lock();
        state.interrupted = true;
        if let Some(waiting) = &state.waiting {
            // A closed channel means that the caller has its result.
            let _ = waiting.send(Event::Interrupted);
        }
        state.break_reading();
        drop(state);
        if let Some(end) = &self.end_of_state
            && self.is_before_all()
        {
            end();
        }
    }

    /// Ends the wait of the caller, because the round has ended.
    pub(super) fn end_round(&self) {
        let mut state = self.state.lock();
        state.round_is_over = true;
        state.break_reading();
    }

    pub(super) fn is_set(&self) -> bool {
        self.state.lock().interrupted
    }

    pub(super) fn round_is_over(&self) -> bool {
        self.state.lock().round_is_over
    }
}

impl State {
    fn break_reading(&self) {
        if let Some(breaker) = &self.reading {
            breaker();
        }
    }
}

/// Guard of a wait that can be interrupted.
pub(super) struct WhileReading<'a>(&'a Interruption);

impl Drop for WhileReading<'_> {
    fn drop(&mut self) {
        self.0.state.lock().reading = None;
    }
}
