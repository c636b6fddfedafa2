//! Layout of the elements of a tensor in its storage, and views without a copy.

use std::ops::Range;

use rdzv_core::quantity::count;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::DataType;

/// Maximum number of dimensions.
pub const DIMENSION_LIMIT: usize = 64;

/// Reason why a tensor or view cannot exist.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MetaError {
    /// There are too many dimensions.
    #[error("a tensor has at most {DIMENSION_LIMIT} dimensions, but this one has {0}")]
    TooManyDimensions(usize),
    /// The number of strides differs from the number of dimensions.
    #[error(
        "the number of dimensions of the shape is {shape}, but the number of strides is {strides}"
    )]
    Lengths {
        /// Number of dimensions of the shape.
        shape: usize,
        /// Number of strides.
        strides: usize,
    },
    /// A stride is negative.
    #[error("stride {stride} of dimension {dimension} is negative; make a contiguous copy first")]
    NegativeStride {
        /// Number of the dimension.
        dimension: usize,
        /// Stride of the dimension, in elements.
        stride: i64,
    },
    /// The elements would not fit into an address space.
    #[error("a tensor of shape {0:?} exceeds the address space")]
    TooLarge(Vec<usize>),
    /// A view reaches beyond its storage.
    #[error("the view covers bytes {} to {} of a storage of {storage} bytes", reach.start, reach.end)]
    OutOfStorage {
        /// Bytes that the view would cover.
        reach: Range<usize>,
        /// Length of the storage, in bytes.
        storage: usize,
    },
    /// The dimension does not exist.
    #[error(
        "dimension {dimension} does not exist in a tensor with {}",
        count(.dimensions, "dimension")
    )]
    NoSuchDimension {
        /// Number of the requested dimension.
        dimension: usize,
        /// Number of dimensions.
        dimensions: usize,
    },
    /// The indices do not exist in the dimension.
    #[error(
        "the range {} to {} is not valid for dimension {dimension}, which has {}",
        range.start, range.end, count(.size, "element")
    )]
    OutOfRange {
        /// Number of the dimension.
        dimension: usize,
        /// Requested indices.
        range: Range<usize>,
        /// Number of elements of the dimension.
        size: usize,
    },
    /// The new shape has another number of elements.
    #[error("shape {from:?} cannot become {to:?}: the number of elements differs")]
    OtherCount {
        /// Current shape.
        from: Vec<usize>,
        /// Requested shape.
        to: Vec<usize>,
    },
    /// A new shape was requested for elements that are not contiguous.
    #[error("only a contiguous tensor can get a new shape without a copy; call contiguous() first")]
    NotContiguous,
}

/// Description of a tensor, without its memory.
///
/// A description is always valid: neither its length nor its end overflows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct TensorMeta {
    data_type: DataType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
}

/// Unchecked fields in the form that is sent. No strides mean contiguous ones.
#[derive(Serialize, Deserialize)]
struct Fields {
    data_type: DataType,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl From<TensorMeta> for Fields {
    fn from(meta: TensorMeta) -> Self {
        let plain = meta.strides == contiguous_strides(&meta.shape);
        Self {
            data_type: meta.data_type,
            offset: meta.offset,
            shape: meta.shape,
            strides: if plain { Vec::new() } else { meta.strides },
        }
    }
}

impl TryFrom<Fields> for TensorMeta {
    type Error = MetaError;

    fn try_from(fields: Fields) -> Result<Self, MetaError> {
        if fields.strides.is_empty() {
            return Self::contiguous(fields.data_type, fields.shape)?.at(fields.offset);
        }
        Self::new(
            fields.data_type,
            fields.shape,
            fields.strides,
            fields.offset,
        )
    }
}

impl TensorMeta {
    /// Creates a tensor of this shape.
    ///
    /// Strides are in elements. The offset of the first element is in bytes.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if there are too many dimensions, or if shape and strides do not match or
    /// reach beyond any memory.
    pub fn new(
        data_type: DataType,
        shape: Vec<usize>,
        strides: Vec<usize>,
        offset: usize,
    ) -> Result<Self, MetaError> {
        if shape.len() > DIMENSION_LIMIT {
            return Err(MetaError::TooManyDimensions(shape.len()));
        }
        if shape.len() != strides.len() {
            return Err(MetaError::Lengths {
                shape: shape.len(),
                strides: strides.len(),
            });
        }
        let meta = Self {
            data_type,
            shape,
            strides,
            offset,
        };
        // From here on, neither the number of bytes nor the end can overflow.
        let fits = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes <= isize::MAX as usize);
        if fits(meta.checked_len()) && fits(meta.checked_end()) {
            Ok(meta)
        } else {
            Err(MetaError::TooLarge(meta.shape))
        }
    }

    /// Creates a description from signed strides, which other libraries use.
    ///
    /// # Errors
    ///
    /// [`MetaError::NegativeStride`], and the errors of [`new`](Self::new).
    pub fn with_signed_strides(
        data_type: DataType,
        shape: Vec<usize>,
        strides: &[i64],
        offset: usize,
    ) -> Result<Self, MetaError> {
        let mut unsigned = Vec::with_capacity(strides.len());
        for (dimension, &stride) in strides.iter().enumerate() {
            // The stride of a dimension with at most one element is never used.
            let steps = shape.get(dimension).is_some_and(|&size| size > 1);
            match usize::try_from(stride) {
                Ok(stride) => unsigned.push(stride),
                Err(_) if !steps => unsigned.push(0),
                Err(_) => return Err(MetaError::NegativeStride { dimension, stride }),
            }
        }
        Self::new(data_type, shape, unsigned, offset)
    }

    /// Creates a contiguous tensor at offset 0; the last index is the fastest.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the tensor has too many dimensions or elements.
    pub fn contiguous(data_type: DataType, shape: Vec<usize>) -> Result<Self, MetaError> {
        let strides = contiguous_strides(&shape);
        Self::new(data_type, shape, strides, 0)
    }

    /// Returns the same tensor with its first element at another offset (bytes).
    ///
    /// # Errors
    ///
    /// [`MetaError::TooLarge`] if the tensor would reach beyond any memory.
    pub fn at(self, offset: usize) -> Result<Self, MetaError> {
        Self::new(self.data_type, self.shape, self.strides, offset)
    }

    /// Returns the type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Returns the number of elements of each dimension; empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Returns the distance between the elements of each dimension, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Returns the offset of the first element in the storage, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of elements.
    pub fn count(&self) -> usize {
        self.byte_len() / self.data_type.size()
    }

    /// Returns the size of all elements in bytes, each counted once per index.
    pub fn byte_len(&self) -> usize {
        self.checked_len().expect("checked when it was made")
    }

    /// `true` if the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Returns the range from the first covered byte to the last.
    ///
    /// The range is empty if the tensor has no elements.
    pub fn reach(&self) -> Range<usize> {
        self.offset..self.checked_end().expect("checked when it was made")
    }

    /// `true` if the elements lie in order without gaps, the last index fastest.
    pub fn is_contiguous(&self) -> bool {
        let dimensions = self.shape.iter().zip(&self.strides);
        let mut expected = 1;
        self.is_empty()
            || dimensions.rev().all(|(&size, &stride)| {
                let right = size == 1 || stride == expected;
                expected *= size;
                right
            })
    }

    /// Checks that the tensor stays within a storage of this many bytes.
    ///
    /// # Errors
    ///
    /// [`MetaError::OutOfStorage`] if it reaches beyond the storage.
    pub fn fits(&self, storage: usize) -> Result<(), MetaError> {
        let reach = self.reach();
        if reach.end > storage {
            return Err(MetaError::OutOfStorage { reach, storage });
        }
        Ok(())
    }

    /// Returns the view of these indices of a dimension.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the dimension or one of the indices does not exist.
    pub fn slice(&self, dimension: usize, range: Range<usize>) -> Result<Self, MetaError> {
        let size = self.size_of(dimension)?;
        if range.start > range.end || range.end > size {
            return Err(MetaError::OutOfRange {
                dimension,
                range,
                size,
            });
        }
        let mut view = self.clone();
        view.shape[dimension] = range.len();
        if !view.is_empty() {
            view.offset += range.start * self.strides[dimension] * self.data_type.size();
        }
        Ok(view)
    }

    /// Returns the view of one index of a dimension, without that dimension.
    ///
    /// # Errors
    ///
    /// The errors of [`slice`](Self::slice).
    pub fn select(&self, dimension: usize, index: usize) -> Result<Self, MetaError> {
        let mut view = self.slice(dimension, index..index.saturating_add(1))?;
        view.shape.remove(dimension);
        view.strides.remove(dimension);
        Ok(view)
    }

    /// Returns the view with two dimensions exchanged.
    ///
    /// # Errors
    ///
    /// [`MetaError::NoSuchDimension`] if one of them does not exist.
    pub fn transpose(&self, one: usize, other: usize) -> Result<Self, MetaError> {
        self.size_of(one)?;
        self.size_of(other)?;
        let mut view = self.clone();
        view.shape.swap(one, other);
        view.strides.swap(one, other);
        Ok(view)
    }

    /// Returns the view of the same elements in another shape.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if the number of elements differs, or they are not contiguous.
    pub fn reshape(&self, shape: Vec<usize>) -> Result<Self, MetaError> {
        let view = Self::contiguous(self.data_type, shape)?.at(self.offset)?;
        if view.count() != self.count() {
            return Err(MetaError::OtherCount {
                from: self.shape.clone(),
                to: view.shape,
            });
        }
        if !self.is_contiguous() {
            return Err(MetaError::NotContiguous);
        }
        Ok(view)
    }

    fn size_of(&self, dimension: usize) -> Result<usize, MetaError> {
        let dimensions = self.shape.len();
        self.shape
            .get(dimension)
            .copied()
            .ok_or(MetaError::NoSuchDimension {
                dimension,
                dimensions,
            })
    }

    fn checked_len(&self) -> Option<usize> {
        if self.is_empty() {
            return Some(0);
        }
        self.shape
            .iter()
            .try_fold(self.data_type.size(), |len, &size| len.checked_mul(size))
    }

    fn checked_end(&self) -> Option<usize> {
        if self.is_empty() {
            return Some(self.offset);
        }
        let mut last: usize = 0;
        for (&size, &stride) in self.shape.iter().zip(&self.strides) {
            last = last.checked_add((size - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)?
            .checked_mul(self.data_type.size())?
            .checked_add(self.offset)
    }
}

/// Returns the strides of contiguous elements.
///
/// Saturates for shapes that no tensor can have.
fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dimension in (1..shape.len()).rev() {
        // An empty dimension counts as one element: the strides of an empty tensor are never used.
        strides[dimension - 1] = shape[dimension].max(1).saturating_mul(strides[dimension]);
    }
    strides
}

#[cfg(test)]
mod tests;
