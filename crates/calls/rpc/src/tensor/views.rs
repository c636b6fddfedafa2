//! Views of a tensor, and its contiguous copy.

use std::ops::Range;

use bytes::Bytes;
use rdzv_rpc_proto::tensor::{Content, Coverage, MetaError, Part, TensorMeta};

use super::{Storage, Tensor};
use crate::RpcError;

impl Tensor {
    /// Only these indices of a dimension.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if there is no such dimension, or not so many indices.
    pub fn slice(&self, dimension: usize, range: Range<usize>) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.slice(dimension, range)?))
    }

    /// One index of a dimension, which goes away.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice).
    pub fn select(&self, dimension: usize, index: usize) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.select(dimension, index)?))
    }

    /// Two dimensions, one in the place of the other.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSuchDimension`] if one of them does not exist.
    pub fn transpose(&self, one: usize, other: usize) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.transpose(one, other)?))
    }

    /// The same elements in another shape.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the number of elements differs, or they are not contiguous.
    pub fn reshape(&self, shape: impl Into<Vec<usize>>) -> Result<Self, MetaError> {
        Ok(self.with(self.meta.reshape(shape.into())?))
    }

    /// Its elements one after another, the last index fastest: itself if they are, else a copy on
    /// the CPU.
    ///
    /// # Errors
    ///
    /// What its device says, or that there is no memory for a copy.
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

    /// The bytes of its elements, the last index fastest: shared if they lie so, else copied.
    ///
    /// # Errors
    ///
    /// As [`contiguous`](Self::contiguous).
    pub fn to_bytes(&self) -> Result<Bytes, RpcError> {
        let contiguous = self.contiguous()?;
        contiguous.storage.bytes(contiguous.meta.reach())
    }

    /// A view of the same storage that was made of this one.
    fn with(&self, meta: TensorMeta) -> Self {
        Self {
            storage: self.storage.clone(),
            meta,
        }
    }
}
