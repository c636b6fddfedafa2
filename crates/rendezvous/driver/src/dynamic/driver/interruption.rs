//! How a join ends from outside: interrupted by the agent, or because the round is over before it
//! has been of any use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use rdzv_lock::Mutex;
use rdzv_store::Breaker;

use super::command::Event;

/// Shared by the handle, its interrupters and the task.
#[derive(Default)]
pub(super) struct Interruption {
    state: Mutex<State>,
    /// Ends the use of the shared state.
    end_of_state: Option<Breaker>,
    /// Whether the shared state has ever answered. If not, this node is not in it.
    reached: AtomicBool,
}

#[derive(Default)]
struct State {
    interrupted: bool,
    /// The round that join is about to return does not hold any more.
    round_is_over: bool,
    /// Whoever waits for a round.
    waiting: Option<Sender<Event>>,
    /// Ends the wait for rank 0.
    reading: Option<Breaker>,
}

impl Interruption {
    /// Of joins over a state that this breaker ends the use of.
    pub(super) fn new(end_of_state: Option<Breaker>) -> Self {
        Self {
            end_of_state,
            ..Self::default()
        }
    }

    /// The shared state has answered.
    pub(super) fn has_reached(&self) {
        self.reached.store(true, Ordering::Release);
    }

    /// Whether there is nothing to leave and nobody to tell: interrupted while the state had never
    /// answered.
    pub(super) fn is_before_all(&self) -> bool {
        self.is_set() && !self.reached.load(Ordering::Acquire)
    }

    /// A join begins, and its caller listens to `waiting`. False if it may not begin.
    pub(super) fn begin(&self, waiting: Sender<Event>) -> bool {
        let mut state = self.state.lock();
        state.round_is_over = false;
        state.waiting = Some(waiting);
        !state.interrupted
    }

    /// The caller is about to wait for what another agent writes; the wait ends with the guard.
    pub(super) fn reading(&self, breaker: Option<Breaker>) -> WhileReading<'_> {
        let mut state = self.state.lock();
        state.reading = breaker;
        if state.interrupted || state.round_is_over {
            state.break_reading();
        }
        WhileReading(self)
    }

    /// For ever.
    pub(super) fn interrupt(&self) {
        let mut state = self.state.lock();
        state.interrupted = true;
        if let Some(waiting) = &state.waiting {
            // It has what it waited for if it does not listen any more.
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

    /// What the caller may be waiting for in this round will not come.
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

/// The time in which a wait can be ended.
pub(super) struct WhileReading<'a>(&'a Interruption);

impl Drop for WhileReading<'_> {
    fn drop(&mut self) {
        self.0.state.lock().reading = None;
    }
}
