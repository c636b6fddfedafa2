//! Tensors: typed, strided views of shared memory that calls can send.
//!
//! A [`Tensor`] consists of a [`Storage`] and a [`TensorMeta`]. Views share the storage, and no
//! code writes to a storage after a tensor was created from it. This module has no arithmetic. The
//! application reads the elements as a slice ([`Tensor::as_slice`]), as bytes, or through DLPack.

mod element;
mod storage;
mod views;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
pub use rdzv_rpc_proto::device::Device;
pub use rdzv_rpc_proto::tensor::{DataType, MetaError, TensorMeta};

pub use element::TensorElement;
pub use storage::Storage;
pub(crate) use storage::put;

use crate::RpcError;
use crate::device::DeviceBackend;

/// Typed, strided view of shared memory; clones and slices never copy it.
///
/// In the arguments and results of calls, a tensor is sent beside the serialised body. Bytes that
/// no tensor of the message covers are left out or sent as zeros, and overlapping views still
/// overlap on arrival. A tensor cannot be serialised elsewhere.
#[derive(Clone)]
pub struct Tensor {
    storage: Storage,
    meta: TensorMeta,
}

impl Tensor {
    /// Creates a view of a storage.
    ///
    /// # Errors
    ///
    /// [`MetaError::OutOfStorage`] if the view covers bytes outside of the storage.
    pub fn new(storage: Storage, meta: TensorMeta) -> Result<Self, MetaError> {
        if !meta.is_empty() {
            meta.fits(storage.len())?;
        }
        Ok(Self { storage, meta })
    }

    /// Creates a contiguous CPU tensor from bytes in little-endian order.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` if the shape does not match the number of bytes.
    pub fn from_bytes(
        data_type: DataType,
        shape: impl Into<Vec<usize>>,
        bytes: impl Into<Bytes>,
    ) -> Result<Self, RpcError> {
        let (meta, bytes) = (
            TensorMeta::contiguous(data_type, shape.into())?,
            bytes.into(),
        );
        if meta.byte_len() != bytes.len() {
            return Err(RpcError::invalid(format!(
                "a tensor of {data_type} with shape {:?} needs {} bytes, but there are {}",
                meta.shape(),
                meta.byte_len(),
                bytes.len()
            )));
        }
        Ok(Self {
            storage: Storage::host(bytes),
            meta,
        })
    }

    /// Returns the storage behind this view.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns the element type, shape, strides, and offset in the storage.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Returns the type of the elements.
    pub fn data_type(&self) -> DataType {
        self.meta.data_type()
    }

    /// Returns the number of elements in each dimension; empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        self.meta.shape()
    }

    /// Returns the distance between neighbours in each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        self.meta.strides()
    }

    /// Returns the device that holds the tensor.
    pub fn device(&self) -> Device {
        self.storage.location()
    }

    /// Returns the tensor in host memory, and copies it there if necessary.
    ///
    /// # Errors
    ///
    /// Returns the errors of the device.
    pub fn to_cpu(&self) -> Result<Self, RpcError> {
        if self.device().is_cpu() {
            return Ok(self.clone());
        }
        let reach = self.meta.reach();
        let storage = Storage::host(self.storage.bytes(reach)?);
        let meta = self.meta.clone().at(0)?;
        Ok(Self { storage, meta })
    }

    /// Copies the tensor to a device, with the bytes in its gaps.
    ///
    /// # Errors
    ///
    /// Returns the errors of the device.
    pub fn to_device(
        &self,
        device: Device,
        backend: &Arc<dyn DeviceBackend>,
    ) -> Result<Self, RpcError> {
        let part = self.storage.bytes(self.meta.reach())?;
        let storages = put(backend, &[device], &[part])?;
        let storage = storages.into_iter().next().expect("one for one part");
        let meta = self.meta.clone().at(0)?;
        Ok(Self { storage, meta })
    }
}

impl From<MetaError> for RpcError {
    fn from(error: MetaError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Tensor({} {:?} on {})",
            self.data_type(),
            self.shape(),
            self.device()
        )
    }
}

#[cfg(test)]
mod tests;
