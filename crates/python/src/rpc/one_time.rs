//! A value that one thread brings, and one async function waits for.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};

use rdzv_lock::Mutex;

struct State<T> {
    value: Option<T>,
    is_over: bool,
    waker: Option<Waker>,
}

/// The end that brings the value.
pub(super) struct Sender<T>(Arc<Mutex<State<T>>>);

/// Both ends. The future gives `None` if the sender is dropped without a value.
pub(super) fn one_time<T>() -> (Sender<T>, impl Future<Output = Option<T>>) {
    let state = Arc::new(Mutex::new(State {
        value: None,
        is_over: false,
        waker: None,
    }));
    let sender = Sender(Arc::clone(&state));
    let arrived = poll_fn(move |context| {
        let mut state = state.lock();
        if state.is_over {
            return Poll::Ready(state.value.take());
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    });
    (sender, arrived)
}

impl<T> Sender<T> {
    pub(super) fn send(self, value: T) {
        self.0.lock().value = Some(value);
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.is_over = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
