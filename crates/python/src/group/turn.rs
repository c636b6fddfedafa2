//! Order of threads that call one group: the order of their arrival.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};

use crate::interrupt::{SLICE, detached, is_to_end};

/// Lock that threads get in the order of their requests.
#[derive(Default)]
pub(super) struct Turn {
    /// Waiting threads in the order of their arrival. The first one has the lock.
    threads: Mutex<VecDeque<ThreadId>>,
    moved: Condvar,
}

/// Turn of this thread, or its position in the queue, until it is dropped.
pub(super) struct Held<'a>(&'a Turn);

impl Turn {
    /// Waits for the turn of this thread.
    ///
    /// # Errors
    ///
    /// Returns `RuntimeError` if this thread already has the lock, or the exception of a signal
    /// handler.
    pub(super) fn enter(&self, py: Python<'_>, operation: &str) -> PyResult<Held<'_>> {
        let own = thread::current().id();
        let mut threads = self.threads.lock();
        if threads.front() == Some(&own) {
            return Err(PyRuntimeError::new_err(format!(
                "{operation}: called by a signal handler during an operation of the same group; \
                 call it after the operation"
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

    /// Waits for the turn of a thread, or until the call must end.
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
        if let Some(index) = threads.iter().position(|thread| *thread == own) {
            threads.remove(index);
        }
        if !threads.is_empty() {
            self.0.moved.notify_all();
        }
    }
}
