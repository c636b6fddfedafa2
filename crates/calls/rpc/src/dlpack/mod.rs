//! Exchange of tensors with other libraries through DLPack, without copies.
//!
//! [`Tensor::to_dlpack`] lends memory of this process, which lives until the other library calls
//! the deleter. [`Tensor::from_dlpack`] borrows memory of the other library. It calls the deleter
//! of the library when the last view is dropped, even if that view is part of a message in flight.
//! Python holds the same pointers in capsules: `dltensor` for [`Legacy`], `dltensor_versioned` for
//! [`Versioned`].
//!
//! The crate `dlpark` knows the layout and the rules of the C structures. Apart from tests, only
//! this file of the crate uses `dlpark`, and only this file has `unsafe`.

#![allow(unsafe_code)]

use bytes::Bytes;
use dlpark::DlpackFlags;
use dlpark::ffi::{DLDataType, DLDevice, DLDeviceType};
use dlpark::metadata::Dynamic;
use dlpark::tensor::TensorRef;
pub use dlpark::{Managed, ManagedTensorBase};
use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::tensor::{DataType, TensorMeta};

use crate::RpcError;
use crate::tensor::{Storage, Tensor};

/// Exchange form of a tensor since DLPack 1.0, with a read-only flag.
pub type Versioned = Managed<dlpark::ffi::DLManagedTensorVersioned>;

/// Exchange form of a tensor before DLPack 1.0.
pub type Legacy = Managed<dlpark::ffi::DLManagedTensor>;

/// Data types here and their DLPack counterparts.
const DATA_TYPES: [(DataType, DLDataType); 16] = [
    (DataType::F64, DLDataType::F64),
    (DataType::F32, DLDataType::F32),
    (DataType::F16, DLDataType::F16),
    (DataType::Bf16, DLDataType::BF16),
    // The E4M3 of safetensors and PyTorch has no infinities.
    (DataType::F8E4M3, DLDataType::F8E4M3FN),
    (DataType::F8E5M2, DLDataType::F8E5M2),
    (DataType::I64, DLDataType::I64),
    (DataType::I32, DLDataType::I32),
    (DataType::I16, DLDataType::I16),
    (DataType::I8, DLDataType::I8),
    (DataType::U64, DLDataType::U64),
    (DataType::U32, DLDataType::U32),
    (DataType::U16, DLDataType::U16),
    (DataType::U8, DLDataType::U8),
    (DataType::Bool, DLDataType::BOOL),
    (DataType::C64, DLDataType::C64),
];

/// Memory of another library, returned on drop.
struct Foreign<M: ManagedTensorBase> {
    /// Not really `'static`: `_owner` holds the bytes, so borrow only from `self`.
    bytes: &'static [u8],
    _owner: Managed<M>,
}

impl<M: ManagedTensorBase> AsRef<[u8]> for Foreign<M> {
    fn as_ref(&self) -> &[u8] {
        self.bytes
    }
}

impl Tensor {
    /// Exports this tensor to another library, as [`Versioned`] or [`Legacy`].
    ///
    /// The export shares the memory. The other library must not write to host memory, because other
    /// views and messages use the same memory. The content of device memory may not be complete:
    /// the caller makes the stream of the other library wait for it.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if the tensor is on
    /// a device whose memory has no address.
    pub fn to_dlpack<M: ManagedTensorBase>(&self) -> Result<Managed<M>, RpcError> {
        if let (Some(memory), Some(index)) = (self.storage().memory(), self.device().index()) {
            let address = memory.address().ok_or_else(|| {
                let device = self.device();
                refused(format!(
                    "a tensor on {device} must be copied to the CPU before it is exported"
                ))
            })?;
            let first = std::ptr::without_provenance(address as usize + self.meta().offset());
            let device = DLDevice {
                device_type: DLDeviceType::CUDA,
                device_id: index as i32,
            };
            return self.described(first, device, DlpackFlags::empty());
        }
        let Some(bytes) = self
            .storage()
            .host_bytes()
            .filter(|_| !self.meta().is_empty())
        else {
            return self.described(std::ptr::null(), DLDevice::CPU, DlpackFlags::READ_ONLY);
        };
        let first = bytes[self.meta().offset()..].as_ptr();
        self.described(first, DLDevice::CPU, DlpackFlags::READ_ONLY)
    }

    fn described<M: ManagedTensorBase>(
        &self,
        first: *const u8,
        device: DLDevice,
        flags: DlpackFlags,
    ) -> Result<Managed<M>, RpcError> {
        let (shape, strides) = (self.shape().to_vec(), self.strides().to_vec());
        let prepared = Dynamic::new(shape, strides)
            .prepare_as::<M>()
            .map_err(|error| refused(error.to_string()))?;
        let known = DATA_TYPES
            .iter()
            .find(|(ours, _)| *ours == self.data_type());
        let (_, data_type) = known.expect("all data types are in the table");
        let mut exported = prepared.initialize(Box::new(self.clone()));
        exported
            .set_data(first.cast_mut().cast())
            .set_device(device)
            .set_dtype(*data_type)
            .set_flags(flags)
            .map_err(|error| refused(error.to_string()))?;
        // SAFETY: the clone keeps the memory until the deleter drops it. Shape and strides are
        // copies within the allocation and, like those of every tensor, stay within the storage
        // from `first` on. A tensor without elements has no pointer. The flag says that host memory
        // is shared and must not change. A device address is valid as long as the clone.
        Ok(unsafe { exported.finish() })
    }

    /// Imports a tensor of another library without copying its memory.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if the tensor is not
    /// in host memory, has elements of an unsupported type, or has negative strides. In this case
    /// the tensor is returned to the library.
    ///
    /// # Safety
    ///
    /// The memory that shape and strides describe must be readable, and no code may write to it,
    /// until the other library gets it back. This happens after every view of this tensor is
    /// dropped and every message with a view is sent.
    pub unsafe fn from_dlpack<M: ManagedTensorBase + 'static>(
        foreign: Managed<M>,
    ) -> Result<Self, RpcError> {
        let (meta, first) = {
            let described = foreign
                .validate()
                .map_err(|error| refused(format!("the object is not a DLPack tensor: {error}")))?;
            let meta = meta_of(&described)?;
            if meta.is_empty() {
                return Ok(Self::new(Storage::host(Bytes::new()), meta)?);
            }
            // SAFETY: this only computes the pointer, which is within the memory, as the caller
            // promised.
            let first = unsafe { described.offset_bytes_ptr() };
            (meta, first.map_err(|error| refused(error.to_string()))?)
        };
        // SAFETY: the caller promised that the bytes within reach of the strides are readable and
        // do not change before `foreign` is dropped. Only `Foreign` lends the slice, and both are
        // dropped together.
        let bytes = unsafe { std::slice::from_raw_parts(first, meta.reach().len()) };
        let owner = Foreign {
            bytes,
            _owner: foreign,
        };
        Ok(Self::new(Storage::host(Bytes::from_owner(owner)), meta)?)
    }
}

/// Tensor of another library in the memory of a CUDA device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForeignTensor {
    /// Type, shape and strides, from the first element on.
    pub meta: TensorMeta,
    /// Device of the memory.
    pub device: Device,
    /// Address of the first element.
    pub address: u64,
}

/// Describes a tensor on a CUDA device; `None` if it is elsewhere.
///
/// Memory that CUDA manages for the host and its devices counts as memory of its device.
///
/// # Errors
///
/// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if the tensor has
/// elements of an unsupported type, or negative strides.
pub fn on_device<M: ManagedTensorBase>(
    foreign: &Managed<M>,
) -> Result<Option<ForeignTensor>, RpcError> {
    let described = foreign
        .validate()
        .map_err(|error| refused(format!("the object is not a DLPack tensor: {error}")))?;
    let on = described.device();
    let device = u32::try_from(on.device_id).map(Device::accelerator);
    let (DLDeviceType::CUDA | DLDeviceType::CUDAMANAGED, Ok(device)) = (on.device_type, device)
    else {
        return Ok(None);
    };
    let start = described.data_ptr().addr() as u64;
    Ok(Some(ForeignTensor {
        meta: layout_of(&described)?,
        device,
        address: start.wrapping_add(described.byte_offset()),
    }))
}

/// Describes a foreign tensor in host memory, from its first element on.
fn meta_of(foreign: &TensorRef<'_>) -> Result<TensorMeta, RpcError> {
    let device = foreign.device();
    // Pinned memory is memory of the host.
    let readable = [
        DLDeviceType::CPU,
        DLDeviceType::CUDAHOST,
        DLDeviceType::ROCMHOST,
    ];
    if !readable.contains(&device.device_type) {
        return Err(refused(format!(
            "the tensor is on a device (type {}, number {}) of another library: copy the tensor to \
             the CPU, or use a device backend that knows its memory",
            device.device_type.0, device.device_id
        )));
    }
    layout_of(foreign)
}

fn layout_of(foreign: &TensorRef<'_>) -> Result<TensorMeta, RpcError> {
    let theirs = foreign.dtype();
    let known = DATA_TYPES
        .iter()
        .find(|(_, dlpack)| theirs.matches(*dlpack));
    let Some((data_type, _)) = known else {
        return Err(refused(format!(
            "cannot send elements of DLPack type code {} (bits: {}, lanes: {})",
            theirs.code.0, theirs.bits, theirs.lanes
        )));
    };
    let sizes = foreign.shape().iter().map(|size| usize::try_from(*size));
    let shape = sizes.collect::<Result<Vec<_>, _>>().map_err(|_| {
        refused(format!(
            "the shape has a negative size: {:?}",
            foreign.shape()
        ))
    })?;
    let strides = foreign
        .strides_or_compact()
        .map_err(|error| refused(error.to_string()))?;
    Ok(TensorMeta::with_signed_strides(
        *data_type, shape, &strides, 0,
    )?)
}

fn refused(message: String) -> RpcError {
    RpcError::invalid(message)
}

#[cfg(test)]
mod tests;
