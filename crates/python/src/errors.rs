//! Errors of the crates as exceptions of `rdzv._errors`.

use std::fmt::Write as _;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rdzv_store::{StoreError, shown, shown_all};

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
        class.call((in_python(&text),), attributes)
    })
}

/// Names the argument of Python in place of the flag.
pub(crate) fn in_python(text: &str) -> String {
    text.replace("--token-file", "token=")
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
/// It is `StoreTimeout` for a wait without success or a request without an answer, `ValueError` for
/// a wrong argument or a value that is not a number, `QueueEmpty` for an empty queue, and otherwise
/// `StoreError`.
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
                "keys [{}] were not set within {:.3} s in the store {store}",
                shown_all(keys),
                elapsed.as_secs_f64()
            );
            if missing.len() < keys.len() {
                let _ = write!(text, "; still missing: [{}]", shown_all(missing));
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
                "barrier {:?}: {arrived} of {world_size} callers arrived within {:.3} s at the \
                 store {store}; check that the other callers are running, or wait longer",
                shown(key),
                elapsed.as_secs_f64()
            ),
        ),
        StoreError::NoAnswer { .. } => ("StoreTimeout", error.to_string()),
        StoreError::QueueEmpty { key } => {
            ("QueueEmpty", format!("queue {:?} is empty", shown(key)))
        }
        StoreError::Listen { .. } => ("StoreError", format!("{error}; port=0 selects a free port")),
        _ => ("StoreError", error.to_string()),
    };
    exception(py, class, text, None)
}
