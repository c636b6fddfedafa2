//! Tensors on devices, for messages and from messages.

use std::sync::Arc;

use dlpark::ffi::DLDeviceType;
use dlpark::python::{CudaStreamRequest, ExportRequest};
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;
use rdzv_cuda::{Cuda, CudaMemory, CudaStream, Pointer};
use rdzv_rpc::dlpack::Legacy;
use rdzv_rpc::tensor::{DataType, Device, Storage, TensorMeta};
use rdzv_rpc::{RpcError, Tensor};

use crate::handle::Own;

/// Contiguous bytes of a tensor on a device.
///
/// The bytes belong to another library, or arrived in a message.
#[pyclass(frozen, name = "DeviceTensor", module = "rdzv._rdzv")]
pub(crate) struct DeviceTensor(Own<Tensor>);

impl DeviceTensor {
    /// Wraps the memory of another library.
    ///
    /// `stream` is the handle of the stream that writes the memory; `None` if it is complete.
    pub(super) fn import(
        cuda: &Cuda,
        (index, address, length): (u32, u64, usize),
        stream: Option<u64>,
        owner: Py<PyAny>,
    ) -> Result<Self, RpcError> {
        let stream = stream.map(CudaStream);
        let memory = (Pointer(address), length);
        let device = Device::accelerator(index);
        let storage = cuda.import(device, memory, stream, Box::new(owner))?;
        Ok(Self(Own::new(bytes(storage)?)))
    }

    /// Wraps a tensor of a message.
    pub(super) fn received(tensor: Tensor) -> Self {
        Self(Own::new(tensor))
    }

    /// Returns the tensor. Fails in a forked child.
    pub(super) fn tensor(&self) -> PyResult<Tensor> {
        self.0.get("DeviceTensor").cloned()
    }

    fn memory(&self) -> PyResult<Arc<CudaMemory>> {
        let tensor = self.tensor()?;
        let memory = tensor.storage().memory().map(Arc::clone);
        let memory = memory.and_then(|memory| {
            let memory: Arc<dyn std::any::Any + Send + Sync> = memory as _;
            memory.downcast().ok()
        });
        memory.ok_or_else(|| PyValueError::new_err("the tensor has no memory on a CUDA device"))
    }

    fn wait_on(&self, stream: CudaStream) -> PyResult<()> {
        let handed = self.memory()?.hand_to(stream);
        handed.map_err(|fault| {
            let text = format!("cannot wait for a tensor on {}: {fault}", self.0.device());
            PyValueError::new_err(text)
        })
    }
}

fn bytes(storage: Storage) -> Result<Tensor, RpcError> {
    let meta = TensorMeta::contiguous(DataType::U8, vec![storage.len()])?;
    Ok(Tensor::new(storage, meta)?)
}

#[pymethods]
impl DeviceTensor {
    fn __len__(&self) -> PyResult<usize> {
        Ok(self.tensor()?.storage().len())
    }

    /// Returns the index of the device.
    #[getter]
    fn device(&self) -> PyResult<u32> {
        Ok(self.tensor()?.device().index().unwrap_or_default())
    }

    /// Returns the address on the device.
    #[getter]
    fn address(&self) -> PyResult<u64> {
        Ok(self.memory()?.pointer().0)
    }

    /// Makes later work of a stream wait for the content. The host does not wait.
    fn hand_to(&self, stream: u64) -> PyResult<()> {
        self.wait_on(CudaStream(stream))
    }

    fn __dlpack_device__(&self) -> PyResult<(u32, u32)> {
        Ok((DLDeviceType::CUDA.0, self.device()?))
    }

    /// Exports the bytes.
    ///
    /// The stream of the consumer waits for them, unless the stream is -1.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // Every consumer accepts the form from before version 1.
        let _ = max_version;
        let request = ExportRequest::parse(stream, None, dl_device, copy)?;
        let wanted = request.device().is_none_or(|wanted| {
            let own = self.0.device().index().map(u64::from);
            wanted.device_type == DLDeviceType::CUDA && own == Some(wanted.device_id as u64)
        });
        if copy == Some(true) || !wanted {
            let text = "a DeviceTensor is exported on its device, without a copy";
            return Err(PyBufferError::new_err(text));
        }
        match request.cuda_stream()? {
            CudaStreamRequest::NoSync => {}
            CudaStreamRequest::Omitted | CudaStreamRequest::LegacyDefault => {
                self.wait_on(CudaStream::LEGACY)?;
            }
            CudaStreamRequest::PerThreadDefault => self.wait_on(CudaStream(2))?,
            CudaStreamRequest::Pointer(handle) => self.wait_on(CudaStream(handle as u64))?,
        }
        let exported: Legacy = self
            .tensor()?
            .to_dlpack()
            .map_err(|error| PyBufferError::new_err(error.to_string()))?;
        exported.into_pyobject(py)
    }

    fn __repr__(&self) -> String {
        format!("<{} bytes on {}>", self.0.storage().len(), self.0.device())
    }
}
