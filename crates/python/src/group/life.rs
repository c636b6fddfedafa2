//! Closes open groups when the interpreter exits.

use pyo3::exceptions::PyRuntimeWarning;
use pyo3::prelude::*;

use super::Shared;

/// Closes the group, with a warning if a collective operation was in progress.
pub(super) fn end(group: &Shared) {
    let was_busy = match group.queue.try_lock() {
        Some(queue) => queue.as_ref().is_some_and(|queue| !queue.is_empty()),
        None => true,
    };
    group
        .closed
        .lock()
        .get_or_insert_with(|| "the end of the interpreter".to_owned());
    group.close();
    if !was_busy {
        return;
    }
    let text = format!(
        "the interpreter is shutting down while rank {} of process group {} is in an operation, so \
         the operation failed; call close() before the end of the program",
        group.rank, group.name
    );
    Python::try_attach(|py| {
        let warn = py.import("warnings").and_then(|warnings| {
            warnings.call_method1("warn", (text, py.get_type::<PyRuntimeWarning>()))
        });
        if let Err(error) = warn {
            error.write_unraisable(py, None);
        }
    });
}
