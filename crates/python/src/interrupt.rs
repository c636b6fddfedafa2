//! Waits that Ctrl-C can end.

use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Longest time between two looks at Python's signals.
const SLICE: Duration = Duration::from_millis(100);

/// Waits in slices until `step` gives a value or `timeout` is over, and runs Python's signal handlers
/// between them.
///
/// `step` gets the longest time that it may wait, runs detached from the interpreter, and gives `None` if
/// nothing has happened in that time. `None` as the result means that the timeout is over. An exception of a
/// signal handler ends the wait.
pub(crate) fn wait_in_slices<T: Send, E: Into<PyErr> + Send>(
    py: Python<'_>,
    timeout: Duration,
    mut step: impl FnMut(Duration) -> Result<Option<T>, E> + Send,
) -> PyResult<Option<T>> {
    let start = Instant::now();
    loop {
        let left = timeout.saturating_sub(start.elapsed());
        if let Some(value) = py.detach(|| step(left.min(SLICE))).map_err(Into::into)? {
            return Ok(Some(value));
        }
        py.check_signals()?;
        if start.elapsed() >= timeout {
            return Ok(None);
        }
    }
}
