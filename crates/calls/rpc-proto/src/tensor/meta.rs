//! Where the elements of a tensor lie in its storage, and the views that need no copy.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::DataType;

/// More dimensions than this are refused.
pub const DIMENSION_LIMIT: usize = 64;

/// Why there is no such tensor or view.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum MetaError {
    /// Too many dimensions.
    #[error("a tensor has at most {DIMENSION_LIMIT} dimensions, but this one has {0}")]
    TooManyDimensions(usize),
    /// Not one stride per dimension.
    #[error("the shape has {shape} dimensions but there are {strides} strides")]
    Lengths {
        /// Dimensions of the shape.
        shape: usize,
        /// How many strides there are.
        strides: usize,
    },
    /// A stride below zero.
    #[error("stride {stride} of dimension {dimension} is negative; make a contiguous copy first")]
    NegativeStride {
        /// Which dimension.
        dimension: usize,
        /// Its stride, in elements.
        stride: i64,
    },
    /// The elements would not fit an address space.
    #[error("a tensor of shape {0:?} reaches beyond what memory can hold")]
    TooLarge(Vec<usize>),
    /// A view that leaves its storage.
    #[error("the view covers bytes {} to {} of a storage of {storage} bytes", reach.start, reach.end)]
    OutOfStorage {
        /// The bytes it would cover.
        reach: Range<usize>,
        /// The bytes that there are.
        storage: usize,
    },
    /// No such dimension.
    #[error("dimension {dimension} of a tensor with {dimensions}")]
    NoSuchDimension {
        /// The one that was asked for.
        dimension: usize,
        /// How many there are.
        dimensions: usize,
    },
    /// No such index in a dimension.
    #[error("{} to {} of dimension {dimension}, which has {size} elements", range.start, range.end)]
    OutOfRange {
        /// Which dimension.
        dimension: usize,
        /// The indices that were asked for.
        range: Range<usize>,
        /// The elements of the dimension.
        size: usize,
    },
    /// A new shape with another number of elements.
    #[error("shape {from:?} cannot become {to:?}: the number of elements differs")]
    OtherCount {
        /// The shape it has.
        from: Vec<usize>,
        /// The shape it should have.
        to: Vec<usize>,
    },
    /// A new shape for elements that do not lie one after another.
    #[error("only a contiguous tensor takes a new shape without a copy; call contiguous() first")]
    NotContiguous,
}

/// What a tensor is, apart from its memory.
///
/// Always sound: the bytes that it covers can be counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct TensorMeta {
    data_type: DataType,
    shape: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
}

/// The same, unchecked, as it travels. No strides stand for contiguous ones.
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
    /// A tensor of this shape.
    ///
    /// Strides are in elements; the offset of the first one is in bytes.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if shape and strides do not go together, or reach further than memory can.
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
        // From here on nothing can overflow: neither the count of bytes nor the end.
        let fits = |bytes: Option<usize>| bytes.is_some_and(|bytes| bytes <= isize::MAX as usize);
        if fits(meta.checked_len()) && fits(meta.checked_end()) {
            Ok(meta)
        } else {
            Err(MetaError::TooLarge(meta.shape))
        }
    }

    /// The same with the signed strides that other libraries use.
    ///
    /// # Errors
    ///
    /// [`MetaError::NegativeStride`], and those of [`new`](Self::new).
    pub fn with_signed_strides(
        data_type: DataType,
        shape: Vec<usize>,
        strides: &[i64],
        offset: usize,
    ) -> Result<Self, MetaError> {
        let mut unsigned = Vec::with_capacity(strides.len());
        for (dimension, &stride) in strides.iter().enumerate() {
            // What is never stepped over has no direction.
            let steps = shape.get(dimension).is_some_and(|&size| size > 1);
            match usize::try_from(stride) {
                Ok(stride) => unsigned.push(stride),
                Err(_) if !steps => unsigned.push(0),
                Err(_) => return Err(MetaError::NegativeStride { dimension, stride }),
            }
        }
        Self::new(data_type, shape, unsigned, offset)
    }

    /// A tensor whose elements lie one after another from the beginning, the last index fastest.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if it has too many dimensions or elements.
    pub fn contiguous(data_type: DataType, shape: Vec<usize>) -> Result<Self, MetaError> {
        let strides = contiguous_strides(&shape);
        Self::new(data_type, shape, strides, 0)
    }

    /// The same tensor, its first element at another offset (bytes).
    ///
    /// # Errors
    ///
    /// [`MetaError::TooLarge`] if it would reach further than memory can.
    pub fn at(self, offset: usize) -> Result<Self, MetaError> {
        Self::new(self.data_type, self.shape, self.strides, offset)
    }

    /// What an element is.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// How many elements each dimension has. Empty for a single number.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How far apart the elements of each dimension are, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Where in the storage the first element is, in bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// How many elements there are.
    pub fn count(&self) -> usize {
        self.byte_len() / self.data_type.size()
    }

    /// The bytes of all elements, each counted once per index.
    pub fn byte_len(&self) -> usize {
        self.checked_len().expect("checked when it was made")
    }

    /// `true` if it has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// From the first byte that it covers to the last. Empty if it has no elements.
    pub fn reach(&self) -> Range<usize> {
        self.offset..self.checked_end().expect("checked when it was made")
    }

    /// `true` if its elements lie one after another, the last index fastest.
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

    /// Checks that it stays within a storage of so many bytes.
    ///
    /// # Errors
    ///
    /// [`MetaError::OutOfStorage`] if it does not.
    pub fn fits(&self, storage: usize) -> Result<(), MetaError> {
        let reach = self.reach();
        if reach.end > storage {
            return Err(MetaError::OutOfStorage { reach, storage });
        }
        Ok(())
    }

    /// Only these indices of a dimension.
    ///
    /// # Errors
    ///
    /// [`MetaError`] if there is no such dimension, or not so many indices.
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

    /// One index of a dimension, which goes away.
    ///
    /// # Errors
    ///
    /// As [`slice`](Self::slice).
    pub fn select(&self, dimension: usize, index: usize) -> Result<Self, MetaError> {
        let mut view = self.slice(dimension, index..index.saturating_add(1))?;
        view.shape.remove(dimension);
        view.strides.remove(dimension);
        Ok(view)
    }

    /// Two dimensions, one in the place of the other.
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

    /// The same elements in another shape.
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

/// The strides of elements that lie one after another.
///
/// Saturates where no tensor can be.
fn contiguous_strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for dimension in (1..shape.len()).rev() {
        // As if an empty dimension had one element: the strides of nothing are never used.
        strides[dimension - 1] = shape[dimension].max(1).saturating_mul(strides[dimension]);
    }
    strides
}

#[cfg(test)]
mod tests;
