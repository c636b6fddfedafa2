//! Callbacks at the end of an operation.
//!
//! They run on the thread that ends the operation. If the operation has already ended, they run
//! immediately on the thread that registers them.

use std::cell::Cell;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

thread_local! {
    /// Number of the group whose callback this thread runs; 0 for none.
    static INSIDE: Cell<u64> = const { Cell::new(0) };
}

pub(super) fn run(group: u64, call: impl FnOnce()) {
    let before = INSIDE.replace(group);
    call();
    INSIDE.set(before);
}

/// Refuses to wait for an operation in a callback of the same group.
///
/// The callback may run on the thread of its operations.
pub(super) fn refuse(group: u64, operation: &str) -> PyResult<()> {
    if INSIDE.get() != group {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "{operation}: called in a callback of the same group, on the thread that runs its \
         operations; pass async_=True, or call it outside of the callback"
    )))
}
