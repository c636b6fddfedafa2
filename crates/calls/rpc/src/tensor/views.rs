//! Views of a tensor, and its contiguous copy.

use std::ops::Range;

use bytes::Bytes;
use rdzv_rpc_proto::tensor::{Content, Coverage, MetaError, Part, TensorMeta};

use super::{Storage, Tensor};
use crate::RpcError;

impl Tensor {
    /// Returns a view with these indices of a dimension.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the dimension or an index does not exist.
    pub fn slice(&self, dimension: usize, range: Range<usize>) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.slice(dimension, range)?))
    }

    /// Returns a view of one index of a dimension, without that dimension.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`slice`](Self::slice).
    pub fn select(&self, dimension: usize, index: usize) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.select(dimension, index)?))
    }

    /// Returns a view with two dimensions exchanged.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSuchDimension`] if one of them does not exist.
    pub fn transpose(&self, one: usize, other: usize) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.transpose(one, other)?))
    }

    /// Returns a view of the same elements in another shape.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the number of elements differs, or they are not contiguous.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.reshape(shape.into())?))
    }

    /// Returns the elements contiguously, the last index fastest.
    ///
    /// This is the tensor itself if its elements have this order, and a copy on the CPU otherwise.
    ///
    /// # Errors
    ///
    /// Returns the errors of its device, or an error if there is no memory for a copy.
    pub fn contiguous(&self) -> Result<Self, RpcError> {
        if self.meta.is_contiguous() {
            return Ok(self.clone());
        }
        let meta = TensorMeta::contiguous(self.data_type(), self.shape().to_vec())?;
        let mut copy = Vec::new();
        copy.try_reserve_exact(meta.byte_len()).map_err(|_| {
            let len = meta.byte_len();
            let message = format!("no memory for a contiguous copy of {len} bytes");
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

    /// Returns the bytes of the elements, the last index fastest.
    ///
    /// The bytes are shared if they have this order, and copied otherwise.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`contiguous`](Self::contiguous).
    pub fn to_bytes(&self) -> Result<Bytes, RpcError> {
        let contiguous = self.contiguous()?;
        contiguous.storage.bytes(contiguous.meta.reach())
    }

    /// Creates a view of the same storage.
    fn with(&self, meta: TensorMeta) -> Self {
        Self {
            storage: self.storage.clone(),
            meta,
        }
    }
}
