//! Bytes of its storage that a view covers.

use std::ops::Range;

use super::TensorMeta;

/// Repetition of a block of bytes at a fixed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Repeat {
    /// Number of repetitions; at least 2.
    pub count: usize,
    /// Distance between two starts, in bytes.
    pub step: usize,
}

/// Bytes of a view: a block without gaps, repeated.
///
/// Computing a coverage does not visit each element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// Offset of the first block, in bytes.
    pub start: usize,
    /// Length of a block in bytes; at least the size of an element.
    pub block: usize,
    /// Repeats of the block, the slowest first.
    ///
    /// In the result of [`of`](Self::of), the widest step is first, and an empty list means no gaps.
    pub repeats: Vec<Repeat>,
}

impl Repeat {
    /// Returns the repeats, one for each dimension with several elements.
    fn of(meta: &TensorMeta) -> Vec<Self> {
        let size = meta.data_type().size();
        let dimensions = meta.shape().iter().zip(meta.strides());
        dimensions
            .filter(|&(&count, _)| count > 1)
            .map(|(&count, &stride)| Self {
                count,
                step: stride * size,
            })
            .collect()
    }
}

impl Coverage {
    /// Returns the bytes that a tensor covers; `None` if it has no elements.
    ///
    /// Dimensions are processed by their strides, the narrowest first. While a stride is not wider
    /// than the current block, the block grows and has no gaps. The first wider stride leaves a
    /// gap. No later stride fills the gap, because those strides are at least as wide.
    pub fn of(meta: &TensorMeta) -> Option<Self> {
        if meta.is_empty() {
            return None;
        }
        let mut repeats = Repeat::of(meta);
        repeats.retain(|repeat| repeat.step > 0);
        repeats.sort_by_key(|repeat| std::cmp::Reverse(repeat.step));
        let mut block = meta.data_type().size();
        while let Some(inner) = repeats.pop_if(|inner| inner.step <= block) {
            block += inner.step * (inner.count - 1);
        }
        Some(Self {
            start: meta.offset(),
            block,
            repeats,
        })
    }

    /// Returns the elements of a tensor in the order of their indices.
    ///
    /// The last index is the fastest, as in a contiguous copy of the tensor. Blocks may overlap,
    /// and offsets may increase and decrease.
    pub fn in_order(meta: &TensorMeta) -> Option<Self> {
        if meta.is_empty() {
            return None;
        }
        let mut block = meta.data_type().size();
        let mut repeats = Repeat::of(meta);
        while let Some(inner) = repeats.pop_if(|inner| inner.step == block) {
            block *= inner.count;
        }
        Some(Self {
            start: meta.offset(),
            block,
            repeats,
        })
    }

    /// Returns the range from the first byte to the last.
    pub fn reach(&self) -> Range<usize> {
        let last: usize = self
            .repeats
            .iter()
            .map(|repeat| repeat.step * (repeat.count - 1))
            .sum();
        self.start..self.start + last + self.block
    }

    /// `true` if a coverage from [`of`](Self::of) has every byte of its reach.
    pub fn is_dense(&self) -> bool {
        self.repeats.is_empty()
    }

    /// `true` if the [`blocks`](Self::blocks) increase and do not overlap.
    pub fn is_nested(&self) -> bool {
        let mut extent = self.block;
        self.repeats.iter().rev().all(|repeat| {
            let apart = repeat.step >= extent;
            extent += repeat.step * (repeat.count - 1);
            apart
        })
    }

    /// Returns the number of blocks, overlapping ones included.
    pub fn block_count(&self) -> usize {
        self.repeats.iter().map(|repeat| repeat.count).product()
    }

    /// Returns the offsets of the blocks; the last repeat is the fastest.
    pub fn blocks(&self) -> BlockOffsets<'_> {
        BlockOffsets {
            coverage: self,
            indices: vec![0; self.repeats.len()],
            next: Some(self.start),
        }
    }
}

/// Offsets of the blocks of a [`Coverage`].
#[derive(Debug)]
pub struct BlockOffsets<'a> {
    coverage: &'a Coverage,
    indices: Vec<usize>,
    next: Option<usize>,
}

impl BlockOffsets<'_> {
    /// Returns the indices of the next block, one per repeat.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }
}

impl Iterator for BlockOffsets<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let here = self.next?;
        let mut following = here;
        for (index, repeat) in self.indices.iter_mut().zip(&self.coverage.repeats).rev() {
            if *index + 1 < repeat.count {
                *index += 1;
                self.next = Some(following + repeat.step);
                return Some(here);
            }
            following -= repeat.step * *index;
            *index = 0;
        }
        self.next = None;
        Some(here)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tensor::DataType;

    /// Returns every byte, found by a visit to each element.
    fn bytes_of(meta: &TensorMeta) -> std::collections::BTreeSet<usize> {
        let size = meta.data_type().size();
        let mut starts = vec![meta.offset()];
        for (&count, &stride) in meta.shape().iter().zip(meta.strides()) {
            starts = starts
                .iter()
                .flat_map(|start| (0..count).map(move |index| start + index * stride * size))
                .collect();
        }
        starts
            .iter()
            .flat_map(|&start| start..start + size)
            .collect()
    }

    proptest! {
        #[test]
        fn blocks_are_the_bytes_of_the_elements(
            dimensions in prop::collection::vec((0..5_usize, 0..12_usize), 0..4),
            wide in any::<bool>(),
            offset in 0..9_usize,
        ) {
            let (shape, strides) = dimensions.into_iter().unzip();
            let data_type = if wide { DataType::I32 } else { DataType::U8 };
            let meta = TensorMeta::new(data_type, shape, strides, offset).unwrap();
            let expected = bytes_of(&meta);
            let Some(coverage) = Coverage::of(&meta) else {
                prop_assert!(expected.is_empty());
                return Ok(());
            };
            let starts: Vec<usize> = coverage.blocks().collect();
            prop_assert_eq!(starts.len(), coverage.block_count());
            let covered: std::collections::BTreeSet<usize> = starts
                .iter()
                .flat_map(|&start| start..start + coverage.block)
                .collect();
            prop_assert_eq!(&covered, &expected);
            let reach = *expected.first().unwrap()..*expected.last().unwrap() + 1;
            prop_assert_eq!(&coverage.reach(), &reach);
            prop_assert_eq!(&meta.reach(), &reach);
            prop_assert_eq!(coverage.is_dense(), expected.len() == reach.len());
            if coverage.is_nested() {
                prop_assert_eq!(starts.len() * coverage.block, expected.len());
                prop_assert!(starts.is_sorted());
            }
        }
    }
}
