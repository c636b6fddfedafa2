//! Functions that are called when an operation has ended, on the thread that runs the operations of a group.

use std::cell::Cell;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

thread_local! {
    /// The group whose function this thread is in; 0 for none.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

/// Runs a function of a group.
pub(super) fn run(group: u64, call: impl FnOnce()) {
    let before = INSIDE.replace(group);
    call();
    INSIDE.set(before);
}

/// Refuses to wait for an operation of a group in a function that the thread of its operations runs.
pub(super) fn refuse(group: u64, operation: &str) -> PyResult<()> {
    if INSIDE.get() != group {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "{operation}: called in a callback of the same group, on the thread that runs its operations; pass async_=True, \
         or call it elsewhere"
    )))
}
