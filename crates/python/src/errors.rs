//! Errors of the crates as exceptions of `rdzv._errors`.

use std::fmt::Write as _;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rdzv_store::StoreError;

use crate::interrupt::below;

/// Creates an exception of a class of `rdzv._errors`, with text and attributes.
pub(crate) fn exception(
    py: Python<'_>,
    class: &str,
    text: String,
    attributes: Option<&Bound<'_, PyDict>>,
) -> PyErr {
    raised(py, || {
        let class = py.import("rdzv._errors")?.getattr(class)?;
        class.call((text,), attributes)
    })
}

/// Returns the exception that `make` returns, or its error.
pub(crate) fn raised<'py>(
    py: Python<'py>,
    make: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
) -> PyErr {
    below(py, make).map_or_else(|error| error, PyErr::from_value)
}

/// Returns the exception for a failure of a store.
///
/// It is `StoreTimeout` for a wait without success, `ValueError` for a wrong argument, `QueueEmpty`
/// for an empty queue, and otherwise `StoreError`.
pub(crate) fn of_store(py: Python<'_>, error: &StoreError) -> PyErr {
    let (class, text) = match error {
        StoreError::Argument(text) => return PyValueError::new_err(text.clone()),
        StoreError::NotANumber { .. } => {
            return PyValueError::new_err(error.to_string());
        }
        StoreError::WaitTimeout {
            store,
            keys,
            missing,
            elapsed,
        } => {
            let mut text = format!(
                "keys {keys:?} did not come within {:.3} s at the store {store}",
                elapsed.as_secs_f64()
            );
            if missing.len() < keys.len() {
                let _ = write!(text, "; still missing: {missing:?}");
            }
            text.push_str("; check that the process that sets them is running, or wait longer");
            ("StoreTimeout", text)
        }
        StoreError::BarrierTimeout {
            store,
            key,
            arrived,
            world_size,
            elapsed,
        } => (
            "StoreTimeout",
            format!(
                "barrier {key:?}: {arrived} of {world_size} callers came within {:.3} s at the store \
                 {store}; check that the others are running, or wait longer",
                elapsed.as_secs_f64()
            ),
        ),
        StoreError::NoAnswer { .. } => ("StoreTimeout", error.to_string()),
        StoreError::QueueEmpty { key } => ("QueueEmpty", format!("queue {key:?} is empty")),
        StoreError::Listen { .. } => (
            "StoreError",
            format!("{error}; port=0 lets the system choose one"),
        ),
        _ => ("StoreError", error.to_string()),
    };
    exception(py, class, text, None)
}
