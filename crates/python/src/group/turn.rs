//! Threads that call one group: one after another, in the order of their arrival.

use std::collections::BTreeSet;
use std::thread::{self, ThreadId};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};

use crate::interrupt::{SLICE, detached, is_to_end};

/// A lock that is given in the order in which it was asked for.
#[derive(Default)]
pub(super) struct Turn {
    state: Mutex<State>,
    moved: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of the next thread that comes.
    next: u64,
    /// The number of the thread that has its turn.
    serving: u64,
    holder: Option<ThreadId>,
    /// Numbers of threads that have gone before their turn.
    gone: BTreeSet<u64>,
}

/// The turn of this thread, until it is dropped.
pub(super) struct Held<'a>(&'a Turn);

impl Turn {
    /// Waits for the turn of this thread.
    ///
    /// # Errors
    ///
    /// `RuntimeError` if this thread has it already; what a signal handler raises.
    pub(super) fn enter(&self, py: Python<'_>, operation: &str) -> PyResult<Held<'_>> {
        let mut state = self.state.lock();
        let own = state.next;
        if state.holder == Some(thread::current().id()) {
            return Err(PyRuntimeError::new_err(format!(
                "{operation}: called by a signal handler inside of an operation of the same group; call it afterwards"
            )));
        }
        state.next += 1;
        if state.serving == own {
            state.holder = Some(thread::current().id());
            return Ok(Held(self));
        }
        drop(state);
        let waited = detached(py, || self.wait(own));
        waited.map(|()| Held(self)).inspect_err(|_| {
            let mut state = self.state.lock();
            state.gone.insert(own);
            self.skip(&mut state);
        })
    }

    /// Waits for the turn of a number, or until the call has to end.
    fn wait(&self, own: u64) {
        let mut state = self.state.lock();
        while state.serving != own {
            drop(self.moved.wait_timeout(state, SLICE));
            // Signal handlers may call this group.
            if is_to_end() {
                return;
            }
            state = self.state.lock();
        }
        state.holder = Some(thread::current().id());
    }

    /// Passes over those that have gone.
    fn skip(&self, state: &mut State) {
        let State { serving, gone, .. } = state;
        while gone.remove(serving) {
            *serving += 1;
        }
        if state.serving != state.next {
            self.moved.notify_all();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.holder = None;
        state.serving += 1;
        self.0.skip(&mut state);
    }
}
