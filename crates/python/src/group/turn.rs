//! Threads that call one group: one after another, in the order of their arrival.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};

use crate::interrupt::{SLICE, detached, is_to_end};

/// A lock that is given in the order in which it was asked for.
#[derive(Default)]
pub(super) struct Turn {
    /// The threads that have come, in their order. The first one has its turn.
    threads: Mutex<VecDeque<ThreadId>>,
    moved: Condvar,
}

/// The turn of this thread, or its place among those that wait, until it is dropped.
pub(super) struct Held<'a>(&'a Turn);

impl Turn {
    /// Waits for the turn of this thread.
    ///
    /// # Errors
    ///
    /// `RuntimeError` if this thread has it already; what a signal handler raises.
    pub(super) fn enter(&self, py: Python<'_>, operation: &str) -> PyResult<Held<'_>> {
        let own = thread::current().id();
        let mut threads = self.threads.lock();
        if threads.front() == Some(&own) {
            return Err(PyRuntimeError::new_err(format!(
                "{operation}: called by a signal handler inside of an operation of the same group; call it afterwards"
            )));
        }
        threads.push_back(own);
        let is_first = threads.len() == 1;
        drop(threads);
        let held = Held(self);
        if !is_first {
            detached(py, || self.wait(own))?;
        }
        Ok(held)
    }

    /// Waits for the turn of a thread, or until the call has to end.
    fn wait(&self, own: ThreadId) {
        let mut threads = self.threads.lock();
        while threads.front() != Some(&own) {
            drop(self.moved.wait_timeout(threads, SLICE));
            // Signal handlers may call this group.
            if is_to_end() {
                return;
            }
            threads = self.threads.lock();
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let own = thread::current().id();
        let mut threads = self.0.threads.lock();
        if let Some(place) = threads.iter().position(|thread| *thread == own) {
            threads.remove(place);
        }
        if !threads.is_empty() {
            self.0.moved.notify_all();
        }
    }
}
