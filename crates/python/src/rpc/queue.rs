//! Items that wait for a thread of Python.

use std::collections::VecDeque;

use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};

use crate::interrupt::detached;

/// Queue that threads of Python take from.
///
/// A producer never waits for the interpreter.
pub(super) struct Queue<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    items: VecDeque<T>,
    /// Number of threads that wait for an item.
    idle: usize,
    closed: bool,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        let state = State {
            items: VecDeque::new(),
            idle: 0,
            closed: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }
}

impl<T: Send> Queue<T> {
    /// Adds an item; returns it if the queue is closed.
    pub(super) fn push(&self, item: T) -> Result<(), T> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(item);
        }
        state.items.push_back(item);
        drop(state);
        self.changed.notify_one();
        Ok(())
    }

    /// Waits for the next item; `None` if the queue is closed.
    ///
    /// The second value is `true` if no other thread waits for an item.
    pub(super) fn next(&self, py: Python<'_>) -> PyResult<Option<(T, bool)>> {
        if let Some(taken) = self.try_next() {
            return Ok(Some(taken));
        }
        detached(py, || {
            let mut state = self.state.lock();
            loop {
                if let Some(item) = state.items.pop_front() {
                    return Some((item, state.idle == 0));
                }
                if state.closed {
                    return None;
                }
                state.idle += 1;
                state = self.changed.wait(state);
                state.idle -= 1;
            }
        })
    }

    fn try_next(&self) -> Option<(T, bool)> {
        // This thread has the interpreter, so it does not wait for the lock.
        let mut state = self.state.try_lock()?;
        let item = state.items.pop_front()?;
        Some((item, state.idle == 0))
    }

    /// Ends all waits, and drops the items.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let items = std::mem::take(&mut state.items);
        drop(state);
        self.changed.notify_all();
        drop(items);
    }
}
