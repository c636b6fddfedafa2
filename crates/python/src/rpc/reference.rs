//! References to objects on other workers.

use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdzv_rpc::{RRef, RpcErrorKind, Timeout};

use super::call_timeout;
use super::errors::of_rpc;
use super::message::{Kept, Reply};
use crate::handle::Origin;
use crate::interrupt::{SLICE, detached, is_to_end};
use crate::memory::Received;

/// The native half of a reference. In a forked child it is left alone.
#[pyclass(frozen, name = "RpcReference", module = "rdzv._rdzv")]
pub(crate) struct RpcReference {
    origin: Origin,
    rref: Option<RRef<Kept>>,
}

impl RpcReference {
    pub(super) fn new(rref: RRef<Kept>) -> Self {
        Self {
            origin: Origin::here(),
            rref: Some(rref),
        }
    }

    pub(super) fn rref(&self) -> PyResult<RRef<Kept>> {
        self.origin.check("RRef")?;
        let rref = self.rref.as_ref();
        rref.cloned()
            .ok_or_else(|| PyRuntimeError::new_err("the reference is gone"))
    }
}

/// The content of a message as Python has it: pickle, memory, references.
pub(super) type Content<'py> = (Bound<'py, PyAny>, Vec<Received>, Vec<RpcReference>);

/// A message of Python's.
pub(super) fn outgoing(
    body: &Bound<'_, PyBytes>,
    parts: &[Bound<'_, PyAny>],
    references: &[PyRef<'_, RpcReference>],
) -> PyResult<Reply> {
    let references = references.iter().map(|one| one.rref());
    Reply::new(body, parts, references.collect::<PyResult<_>>()?)
}

/// A message for Python.
pub(super) fn incoming(py: Python<'_>, reply: Reply) -> PyResult<Content<'_>> {
    let (body, parts, references) = reply.into_parts(py)?;
    let references = references.into_iter().map(RpcReference::new);
    Ok((body, parts, references.collect()))
}

impl Drop for RpcReference {
    fn drop(&mut self) {
        // In a child it stays: its agent is the parent's.
        if self.origin.is_foreign() {
            let _left = ManuallyDrop::new(self.rref.take());
        }
    }
}

#[pymethods]
impl RpcReference {
    #[getter]
    fn is_owner(&self) -> bool {
        self.rref.as_ref().is_some_and(RRef::is_owner)
    }

    #[getter]
    fn owner(&self) -> PyResult<(String, u32)> {
        let rref = self.rref()?;
        Ok((rref.owner().name.to_string(), rref.owner().id.0))
    }

    #[getter]
    fn confirmed_by_owner(&self) -> PyResult<bool> {
        Ok(self.rref()?.confirmed_by_owner())
    }

    fn __repr__(&self) -> String {
        self.rref.as_ref().map(RRef::to_string).unwrap_or_default()
    }

    /// The object, on its owner.
    #[pyo3(signature = (timeout=None))]
    fn local_value(
        &self,
        py: Python<'_>,
        timeout: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let rref = self.rref()?;
        let until = match call_timeout(timeout)? {
            Timeout::After(time) => Instant::now().checked_add(time),
            _ => None,
        };
        let found = detached(py, || {
            loop {
                let left = until.map(|until| until.saturating_duration_since(Instant::now()));
                let slice = SLICE
                    .min(left.unwrap_or(SLICE))
                    .max(Duration::from_micros(1));
                match rref.local_value_within(slice.into()) {
                    Err(error) if error.kind == RpcErrorKind::Deadline => {
                        if is_to_end() || left.is_some_and(|left| left.is_zero()) {
                            return Err(error);
                        }
                    }
                    found => return found,
                }
            }
        })?;
        match found {
            Ok(value) => Ok(value.object(py)),
            Err(error) => Err(of_rpc(py, &error)),
        }
    }
}
