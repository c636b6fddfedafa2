//! Ctrl-C in operations: an operation on the main thread runs signal handlers.

use std::cell::Cell;

use pyo3::prelude::*;

use crate::interrupt::{detached, is_to_end};

thread_local! {
    /// `true` if this thread is in a synchronous operation.
    ///
    /// Then it can raise an exception.
    static CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Runs an operation detached from the interpreter.
///
/// If a signal handler raises during the operation, the result is its exception.
pub(super) fn run<R: Send>(py: Python<'_>, act: impl FnOnce() -> R + Send) -> PyResult<R> {
    detached(py, || {
        CALLING.set(true);
        let result = act();
        CALLING.set(false);
        result
    })
}

/// `true` if the operation must end.
///
/// This is the case if a signal handler of Python raises, or the interpreter ends. It is `false`
/// for a thread that runs the operations of other threads.
pub(super) fn is_raised() -> bool {
    CALLING.get() && is_to_end()
}
