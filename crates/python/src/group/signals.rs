//! Ctrl-C in operations: Python's signal handlers run on the thread that is in the operation.

use std::cell::Cell;

use pyo3::prelude::*;

use crate::interrupt::{detached, is_to_end};

thread_local! {
    /// Whether this thread has called a synchronous operation, and can take an exception.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Runs an operation detached from the interpreter. If a signal handler raises meanwhile, that is the result.
pub(super) fn run<R: Send>(py: Python<'_>, act: impl FnOnce() -> R + Send) -> PyResult<R> {
    detached(py, || {
        CALLING.set(true);
        let result = act();
        CALLING.set(false);
        result
    })
}

/// Whether the operation has to end, as a signal handler of Python raises, or the interpreter ends. No for a thread
/// that runs the operations of others.
pub(super) fn is_raised() -> bool {
    CALLING.get() && is_to_end()
}
