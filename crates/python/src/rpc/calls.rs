//! Arrived calls, in the order in which threads of Python execute them.
//!
//! At most `num_worker_threads` functions run at a time. A call that belongs to the same trace as a
//! function of this worker that waits for a call is *nested*: the function may wait for it. Nested
//! calls therefore do not count, and run on further threads, up to [`most_threads`].

use std::collections::{BTreeMap, VecDeque};

use pyo3::prelude::*;
use rdzv_lock::{Condvar, Mutex};

use super::request::Arrived;
use crate::interrupt::detached;

/// Returns the maximum number of threads for calls, nested ones included.
pub(super) fn most_threads(num_worker_threads: usize) -> usize {
    num_worker_threads.saturating_mul(16).max(256)
}

/// Arrived calls that no thread executes yet.
///
/// A producer never waits for the interpreter.
pub(super) struct Calls {
    /// Maximum number of calls that run at a time, nested ones excluded.
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    plain: VecDeque<Arrived>,
    nested: VecDeque<Arrived>,
    /// Number of calls that run, nested ones excluded.
    running: usize,
    /// Number of waits inside calls, by trace.
    waits: BTreeMap<u128, usize>,
    /// Number of threads for calls that wait inside a call.
    blocked: usize,
    /// Number of threads that wait for an arrived call.
    idle: usize,
    closed: bool,
}

/// Call for a thread.
pub(super) struct Taken {
    pub(super) arrived: Arrived,
    /// `true` unless the call is nested.
    pub(super) is_plain: bool,
    /// `true` if no thread is left that waits for a call.
    pub(super) is_last: bool,
}

impl State {
    fn take(&mut self, most: usize) -> Option<Taken> {
        let nested = self.nested.pop_front();
        let is_plain = nested.is_none();
        let arrived = match nested {
            Some(nested) => nested,
            None if self.running < most => self.plain.pop_front()?,
            None => return None,
        };
        self.running += usize::from(is_plain);
        let is_last = self.idle == 0;
        Some(Taken {
            arrived,
            is_plain,
            is_last,
        })
    }
}

impl Calls {
    pub(super) fn new(num_worker_threads: usize) -> Self {
        Self {
            most: num_worker_threads,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Adds a call; drops it if the agent has stopped, which fails it.
    pub(super) fn push(&self, arrived: Arrived) {
        let mut state = self.state.lock();
        if state.closed {
            drop(state);
            return;
        }
        if state.waits.contains_key(&arrived.context().trace()) {
            state.nested.push_back(arrived);
        } else {
            state.plain.push_back(arrived);
        }
        drop(state);
        self.changed.notify_one();
    }

    /// Waits for a call to execute on this thread; `None` if the agent has stopped.
    ///
    /// `was_plain` is the kind of the call that this thread has executed before.
    pub(super) fn next(&self, py: Python<'_>, was_plain: bool) -> PyResult<Option<Taken>> {
        // This thread has the interpreter, so it does not wait for the lock.
        let mut ended = usize::from(was_plain);
        if let Some(mut state) = self.state.try_lock() {
            state.running -= std::mem::take(&mut ended);
            if let Some(taken) = state.take(self.most) {
                return Ok(Some(taken));
            }
        }
        detached(py, || {
            let mut state = self.state.lock();
            state.running -= ended;
            loop {
                if let Some(taken) = state.take(self.most) {
                    return Some(taken);
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

    /// Begins a wait inside a call of this trace.
    ///
    /// `on_thread` is `true` on a thread for calls.
    ///
    /// # Errors
    ///
    /// The number of waits of the trace, if this thread is the last one for nested calls.
    pub(super) fn begin_wait(&self, trace: u128, on_thread: bool) -> Result<(), usize> {
        let mut state = self.state.lock();
        let waits = state.waits.get(&trace).copied().unwrap_or(0);
        if on_thread && state.blocked + 1 >= most_threads(self.most) {
            return Err(waits);
        }
        state.waits.insert(trace, waits + 1);
        state.blocked += usize::from(on_thread);
        if waits == 0 {
            // These arrived before the function began to wait.
            let is_nested = |arrived: &Arrived| arrived.context().trace() == trace;
            let all = std::mem::take(&mut state.plain).into_iter();
            let (nested, plain): (VecDeque<_>, _) = all.partition(is_nested);
            state.plain = plain;
            let some = !nested.is_empty();
            state.nested.extend(nested);
            drop(state);
            if some {
                self.changed.notify_all();
            }
        }
        Ok(())
    }

    pub(super) fn end_wait(&self, trace: u128, on_thread: bool) {
        let mut state = self.state.lock();
        state.blocked -= usize::from(on_thread);
        if let Some(waits) = state.waits.get_mut(&trace) {
            *waits -= 1;
            if *waits == 0 {
                state.waits.remove(&trace);
            }
        }
    }

    /// Ends all waits of threads, and drops the calls.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        let plain = std::mem::take(&mut state.plain);
        let nested = std::mem::take(&mut state.nested);
        drop(state);
        self.changed.notify_all();
        drop((plain, nested));
    }
}
