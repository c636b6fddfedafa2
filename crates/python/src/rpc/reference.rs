//! References to objects on other workers.

use std::time::{Duration, Instant};

use pyo3::prelude::*;
use rdzv_rpc::{RRef, RpcErrorKind, Timeout};

use super::errors::of_rpc;
use super::{call_timeout, given_up, named};
use crate::argument::Object;
use crate::handle::Own;
use crate::interrupt::wait_in_slices;
use crate::timeout::FOREVER;

/// Python object that its owner keeps while references to it exist.
///
/// It is never sent.
pub(super) struct Kept(pub(super) Py<PyAny>);

/// Native half of a reference.
#[pyclass(frozen, name = "RpcReference", module = "rdzv._rdzv")]
pub(crate) struct RpcReference(Own<RRef<Kept>>);

impl RpcReference {
    pub(super) fn new(rref: RRef<Kept>) -> Self {
        Self(Own::new(rref))
    }

    pub(super) fn rref(&self) -> PyResult<RRef<Kept>> {
        self.0.get("RRef").cloned()
    }
}

#[pymethods]
impl RpcReference {
    #[getter]
    fn is_owner(&self) -> bool {
        self.0.is_owner()
    }

    #[getter]
    fn owner(&self) -> PyResult<(String, u32)> {
        Ok(named(self.rref()?.owner()))
    }

    #[getter]
    fn confirmed_by_owner(&self) -> PyResult<bool> {
        Ok(self.rref()?.confirmed_by_owner())
    }

    fn __repr__(&self) -> String {
        self.0.to_string()
    }

    /// Returns the object, on its owner.
    #[pyo3(signature = (timeout=None))]
    fn local_value(&self, py: Python<'_>, timeout: Option<Object<'_>>) -> PyResult<Py<PyAny>> {
        let rref = self.rref()?;
        let limit = match call_timeout(timeout)? {
            Timeout::After(time) => time,
            _ => FOREVER,
        };
        let mut late = None;
        let found = wait_in_slices(py, limit, |slice| {
            let begun = Instant::now();
            match rref.local_value_within(slice.max(Duration::from_micros(1)).into()) {
                // An earlier error is that of the value, whose function was late.
                Err(error) if error.kind == RpcErrorKind::Deadline && begun.elapsed() >= slice => {
                    late = Some(Err(error));
                    None
                }
                found => Some(found),
            }
        })?;
        match found.or(late).unwrap_or_else(|| Err(given_up())) {
            Ok(value) => Ok(value.0.clone_ref(py)),
            Err(error) => Err(of_rpc(py, &error)),
        }
    }
}
