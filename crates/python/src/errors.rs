//! Errors of the crates as exceptions of `rdzv._errors`.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use rdzv_store::StoreError;

/// Makes an exception of the class `class` of `rdzv._errors`, with a text and attributes.
pub(crate) fn exception(
    py: Python<'_>,
    class: &str,
    text: String,
    attributes: Option<&Bound<'_, PyDict>>,
) -> PyErr {
    let made = py
        .import("rdzv._errors")
        .and_then(|module| module.getattr(class))
        .and_then(|class| class.call((text,), attributes));
    match made {
        Ok(exception) => PyErr::from_value(exception),
        Err(error) => error,
    }
}

/// The exception for a failure of a store: `StoreTimeout` for what was waited for in vain, else `StoreError`;
/// `ValueError` for a wrong argument.
pub(crate) fn of_store(py: Python<'_>, error: &StoreError) -> PyErr {
    let class = match error {
        StoreError::Argument(text) => {
            return pyo3::exceptions::PyValueError::new_err(text.clone());
        }
        StoreError::WaitTimeout { .. } | StoreError::BarrierTimeout { .. } => "StoreTimeout",
        _ => "StoreError",
    };
    exception(py, class, format!("failed to {error}"), None)
}
