//! Tensors: typed, strided views of shared memory that travel in calls without being copied.
//!
//! A [`Tensor`] is a [`Storage`] and a [`TensorMeta`]. Views share the storage; nothing writes to a
//! storage that a tensor was made of. There is no arithmetic here: that is the business of whoever
//! made the numbers, who gets them as a slice of them ([`Tensor::as_slice`]), as bytes, or through
//! DLPack.

mod element;
mod storage;
mod views;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
pub use rdzv_rpc_proto::device::Device;
pub use rdzv_rpc_proto::tensor::{DataType, MetaError, TensorMeta};

pub use element::Element;
pub use storage::Storage;
pub(crate) use storage::put;

use crate::RpcError;
use crate::device::DeviceBackend;

/// A typed, strided view of shared memory. Cloning and slicing never copy the memory.
///
/// Within the arguments and results of calls it travels beside the serialised body: exactly the
/// bytes that it covers, and views that overlap still do so when they arrive. It cannot be
/// serialised anywhere else.
#[derive(Clone)]
pub struct Tensor {
    storage: Storage,
    meta: TensorMeta,
}

impl Tensor {
    /// A view of a storage.
    ///
    /// # Errors
    ///
    /// [`MetaError::OutOfStorage`] if it covers bytes that the storage has not.
    pub fn new(storage: Storage, meta: TensorMeta) -> Result<Self, MetaError> {
        if !meta.is_empty() {
            meta.fits(storage.len())?;
        }
        Ok(Self { storage, meta })
    }

    /// A contiguous tensor on the CPU of these bytes, in the order of this machine (little endian).
    ///
    /// # Errors
    ///
    /// Kind InvalidArgument if the shape needs another number of bytes.
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
                "a tensor of {data_type} with shape {:?} takes {} bytes, but there are {}",
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

    /// The memory it is a view of.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Its type, shape and strides, and its offset in the storage.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// What its elements are.
    pub fn data_type(&self) -> DataType {
        self.meta.data_type()
    }

    /// How many elements each dimension has. Empty for a single number.
    pub fn shape(&self) -> &[usize] {
        self.meta.shape()
    }

    /// How far apart the elements of each dimension are, in elements.
    pub fn strides(&self) -> &[usize] {
        self.meta.strides()
    }

    /// Where it is.
    pub fn device(&self) -> Device {
        self.storage.location()
    }

    /// The same tensor in the memory of the host: itself if it is there, else a copy of it.
    ///
    /// # Errors
    ///
    /// What its device says.
    pub fn to_cpu(&self) -> Result<Self, RpcError> {
        if self.device().is_cpu() {
            return Ok(self.clone());
        }
        let reach = self.meta.reach();
        let storage = Storage::host(self.storage.bytes(reach)?);
        let meta = self.meta.clone().at(0)?;
        Ok(Self { storage, meta })
    }

    /// A copy of the bytes that it reaches over, on a device.
    ///
    /// # Errors
    ///
    /// What the device says.
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
