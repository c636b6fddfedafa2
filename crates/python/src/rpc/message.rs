//! Messages: a pickle, the memory beside it, and the references in it.

use bytes::Bytes;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use rdzv_rpc::tensor::{DataType, Storage, TensorMeta};
use rdzv_rpc::{Method, RRef, RpcError, Tensor, ValueMethod};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::device::DeviceTensor;
use super::reference::{Kept, RpcReference};
use crate::memory::{Received, TensorMemory, shared_bytes};

/// Call of a Python function by its name.
pub(super) const CALL: Method<Call, Reply> = Method::new("rdzv.python/call");

/// Call of a Python function whose result is kept.
pub(super) const REMOTE: Method<Call, Kept> = Method::new("rdzv.python/remote");

/// Request for a copy of a kept value.
pub(super) const VALUE: ValueMethod<Kept, (), Reply> = ValueMethod::new("rdzv.python/value");

/// Maximum length of a pickle in the body.
///
/// Longer pickles are sent beside the body, as memory that is not copied.
const LONGEST_BODY: usize = 32 << 10;

#[derive(Clone, Serialize, Deserialize)]
enum Body {
    Here(Inline),
    Beside(Tensor),
}

#[derive(Clone)]
struct Inline(Bytes);

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Call {
    pub(super) function: String,
    pub(super) content: Reply,
}

/// Pickle with the memory and references beside it.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Reply {
    body: Body,
    parts: Vec<Tensor>,
    references: Vec<RRef<Kept>>,
}

/// Content of a message for Python: pickle, memory, references.
pub(super) type Content<'py> = (Bound<'py, PyAny>, Vec<Bound<'py, PyAny>>, Vec<RpcReference>);

impl Reply {
    pub(super) fn new(
        body: &Bound<'_, PyBytes>,
        parts: &[Bound<'_, PyAny>],
        references: &[PyRef<'_, RpcReference>],
    ) -> PyResult<Self> {
        let references = references.iter().map(|one| one.rref());
        let references = references.collect::<PyResult<_>>()?;
        let bytes = body.as_bytes();
        let body = if bytes.len() <= LONGEST_BODY {
            Body::Here(Inline(Bytes::copy_from_slice(bytes)))
        } else {
            Body::Beside(tensor(Storage::unmapped(shared_bytes(body.as_any())?))?)
        };
        Ok(Self {
            body,
            parts: parts.iter().map(part).collect::<PyResult<_>>()?,
            references,
        })
    }

    /// Returns the message in the form for Python.
    pub(super) fn into_content(self, py: Python<'_>) -> PyResult<Content<'_>> {
        let body = match self.body {
            Body::Here(Inline(bytes)) => PyBytes::new(py, &bytes).into_any(),
            Body::Beside(tensor) => received(py, tensor)?,
        };
        let parts = self.parts.into_iter().map(|part| received(py, part));
        let references = self.references.into_iter().map(RpcReference::new);
        Ok((body, parts.collect::<PyResult<_>>()?, references.collect()))
    }
}

/// Returns a part of a message; device maps apply only to tensors.
fn part(part: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Ok(part) = part.cast::<DeviceTensor>() {
        return part.get().tensor();
    }
    let bytes = shared_bytes(part)?;
    tensor(if part.is_instance_of::<TensorMemory>() {
        Storage::host(bytes)
    } else {
        Storage::unmapped(bytes)
    })
}

fn tensor(storage: Storage) -> PyResult<Tensor> {
    let meta = TensorMeta::contiguous(DataType::U8, vec![storage.len()]);
    let tensor = meta.and_then(|meta| Tensor::new(storage, meta));
    tensor.map_err(|error| invalid(error.into()))
}

fn received(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    if !tensor.device().is_cpu() {
        return Ok(Bound::new(py, DeviceTensor::received(tensor))?.into_any());
    }
    let range = tensor.meta().reach();
    let bytes = tensor.storage().bytes(range).map_err(invalid)?;
    drop(tensor);
    Ok(Bound::new(py, Received::new(bytes))?.into_any())
}

fn invalid(error: RpcError) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(error.to_string())
}

impl Serialize for Inline {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Inline {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = <&[u8]>::deserialize(deserializer)?;
        if bytes.len() > LONGEST_BODY {
            return Err(D::Error::custom(
                "a pickle of this length must be outside the body",
            ));
        }
        Ok(Self(Bytes::copy_from_slice(bytes)))
    }
}
