//! Views of a tensor, and contiguous copies.

use std::ops::Range;

use bytes::Bytes;
use rdzv_rpc_proto::tensor::{Content, Coverage, MetaError, Part, TensorMeta};

use super::{Storage, Tensor};
use crate::RpcError;

impl Tensor {
    /// Returns a view of a range of indices in one dimension.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the dimension or an index does not exist.
    pub fn slice(&self, dimension: usize, range: Range<usize>) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.slice(dimension, range)?))
    }

    /// Returns a view at one index of a dimension, without that dimension.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`slice`](Self::slice).
    pub fn select(&self, dimension: usize, index: usize) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.select(dimension, index)?))
    }

    /// Returns a view with two dimensions swapped.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSuchDimension`] if one of them does not exist.
    pub fn transpose(&self, one: usize, other: usize) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.transpose(one, other)?))
    }

    /// Returns a view of the same elements with another shape.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the number of elements differs, or the tensor is not contiguous.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.reshape(shape.into())?))
    }

    /// Returns a contiguous tensor, with the last index varying fastest.
    ///
    /// If the elements already have this order, this is the tensor itself; otherwise it is a copy
    /// on the CPU.
    ///
    /// # Errors
    ///
    /// Returns the errors of the device, or an error if the copy cannot be allocated.
    pub fn contiguous(&self) -> Result<Self, RpcError> {
        if self.meta.is_contiguous() {
            return Ok(self.clone());
        }
        let meta = TensorMeta::contiguous(self.data_type(), self.shape().to_vec())?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(meta.byte_len()).map_err(|_| {
            let len = meta.byte_len();
            let message = format!("cannot allocate {len} bytes for a contiguous copy");
            RpcError::invalid(message)
        })?;
        let order = Coverage::in_order(&self.meta).expect("what is empty is contiguous");
        let part = Part {
            storage: 0,
            content: Content::Blocks(order),
        };
        part.write(&self.storage.bytes(part.reach())?, &mut copy);
        Ok(Self {
            storage: Storage::host(Bytes::from(copy)),
            meta,
        })
    }

    /// Returns the bytes of the elements, with the last index varying fastest.
    ///
    /// The bytes are shared if the elements are in host memory and already have this order, and
    /// copied otherwise.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`contiguous`](Self::contiguous).
    pub fn to_bytes(&self) -> Result<Bytes, RpcError> {
        let contiguous = self.contiguous()?;
        contiguous.storage.bytes(contiguous.meta.reach())
    }

    /// Creates another view of the same storage.
    fn with(&self, meta: TensorMeta) -> Self {
        Self {
            storage: self.storage.clone(),
            meta,
        }
    }
}
