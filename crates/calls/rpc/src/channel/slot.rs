//! A slot for the answer of a call, filled at most once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use rdzv_lock::{Condvar, Mutex};

use crate::error::RpcError;

/// One value, and the task or the threads that wait for the value.
#[derive(Debug)]
pub(crate) struct Slot<T> {
    /// Kept outside the lock, so that a check of this flag needs no lock.
    filled: AtomicBool,
    state: Mutex<State<T>>,
    arrived: Condvar,
    /// Number of parked threads; changed only with the lock held.
    parked: AtomicUsize,
}

#[derive(Debug)]
enum State<T> {
    Empty(Option<Waker>),
    Full(T),
    Taken,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self {
            filled: AtomicBool::new(false),
            state: Mutex::new(State::Empty(None)),
            arrived: Condvar::new(),
            parked: AtomicUsize::new(0),
        }
    }
}

/// Guard that fills a slot: a dropped promise fills it with an error.
/// The tasks of a stopping agent drop their promises.
pub(crate) struct Promise<T>(Arc<Slot<Result<T, RpcError>>>);

impl<T> Promise<T> {
    pub(crate) fn new(slot: &Arc<Slot<Result<T, RpcError>>>) -> Self {
        Self(Arc::clone(slot))
    }

    pub(crate) fn keep(self, value: Result<T, RpcError>) {
        self.0.fill(value);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.0.is_filled() {
            self.0.fill(Err(RpcError::stopping()));
        }
    }
}

impl<T> Slot<T> {
    pub(crate) fn full(value: T) -> Self {
        let slot = Self::default();
        slot.fill(value);
        slot
    }

    /// Fills the slot, unless it already had a value.
    /// Returns `true` if the slot was empty.
    pub(crate) fn fill(&self, value: T) -> bool {
        let mut state = self.state.lock();
        let State::Empty(waker) = &mut *state else {
            return false;
        };
        let waker = waker.take();
        *state = State::Full(value);
        self.filled.store(true, Ordering::Release);
        let is_awaited = self.parked.load(Ordering::Relaxed) > 0;
        drop(state);
        if is_awaited {
            self.arrived.notify_all();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }

    pub(crate) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    pub(crate) fn take(&self) -> Option<T> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Full(value) => Some(value),
            State::Taken => None,
            empty @ State::Empty(_) => {
                *state = empty;
                None
            }
        }
    }

    /// Registers a waker for the arrival of the value.
    /// Returns `false` if the value has already arrived.
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        match &mut *self.state.lock() {
            State::Empty(watching) => {
                *watching = Some(waker.clone());
                true
            }
            State::Full(_) | State::Taken => false,
        }
    }

    /// Blocks until the value has arrived or the deadline has passed.
    pub(crate) fn park(&self, deadline: Option<Instant>) {
        let mut state = self.state.lock();
        while matches!(*state, State::Empty(_)) {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return;
            }
            self.parked.fetch_add(1, Ordering::Relaxed);
            state = match left {
                Some(left) => self.arrived.wait_timeout(state, left).0,
                None => self.arrived.wait(state),
            };
            self.parked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the value, or registers the task to wake on its arrival.
    ///
    /// # Panics
    ///
    /// Panics if the value was already taken: a future must not be polled after it was ready.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.state.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Full(value) => Poll::Ready(value),
            State::Taken => panic!("a call was polled again after it had returned its answer"),
            State::Empty(_) => {
                *state = State::Empty(Some(context.waker().clone()));
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::RpcErrorKind;

    #[test]
    fn the_first_value_counts_and_is_taken_once() {
        let slot = Slot::default();
        assert!(slot.fill(1));
        assert!(!slot.fill(2));
        assert!(slot.is_filled());
        assert_eq!(slot.take(), Some(1));
        assert_eq!(slot.take(), None);
        assert!(!slot.fill(3));
    }

    #[test]
    fn who_waits_is_woken() {
        let slot = Arc::new(Slot::default());
        let filler = Arc::clone(&slot);
        let thread = std::thread::spawn(move || filler.fill(7));
        slot.park(None);
        assert_eq!(slot.take(), Some(7));
        thread.join().unwrap();
    }

    #[test]
    fn a_promise_that_is_dropped_is_an_error() {
        let slot = Arc::new(Slot::default());
        Promise::new(&slot).keep(Ok(7));
        assert_eq!(slot.take(), Some(Ok(7)));
        let slot = Arc::new(Slot::<Result<u8, RpcError>>::default());
        drop(Promise::new(&slot));
        let error = slot.take().unwrap().unwrap_err();
        assert_eq!(error.kind, RpcErrorKind::Stopping);
    }

    #[test]
    fn waiting_ends_in_time() {
        let slot = Slot::<u8>::default();
        slot.park(Some(Instant::now() + Duration::from_millis(1)));
        assert_eq!(slot.take(), None);
        assert!(slot.fill(1), "the slot still takes its value");
    }
}
