//! Elements of the parts of a buffer.

use std::ops::Range;

/// Cut of a buffer into consecutive parts without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Offset of each part, and the end of the last one.
    bounds: Vec<usize>,
}

impl Parts {
    /// Cuts `len` elements into `count` parts that differ by at most one element.
    ///
    /// The longer parts come first.
    pub(crate) fn even(count: u32, len: usize) -> Self {
        let count = count as usize;
        let (each, rest) = (len / count, len % count);
        Self {
            bounds: (0..=count)
                .map(|part| part * each + part.min(rest))
                .collect(),
        }
    }

    pub(crate) fn of(lengths: &[usize]) -> Self {
        let mut end = 0;
        let ends = lengths.iter().map(|length| {
            end += length;
            end
        });
        Self {
            bounds: std::iter::once(0).chain(ends).collect(),
        }
    }

    /// Creates one part per rank; only the part of `rank` has elements.
    pub(crate) fn only(rank: u32, world_size: u32, len: usize) -> Self {
        let bound = |part| if part <= rank { 0 } else { len };
        Self {
            bounds: (0..=world_size).map(bound).collect(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.bounds.len() - 1
    }

    pub(crate) fn range(&self, part: u32) -> Range<usize> {
        let part = part as usize % self.count();
        self.bounds[part]..self.bounds[part + 1]
    }

    /// Returns the number of elements of the longest part.
    pub(crate) fn longest(&self) -> usize {
        let lengths = self.bounds.windows(2).map(|pair| pair[1] - pair[0]);
        lengths.max().unwrap_or_default()
    }

    /// Returns the elements of one part that belong to one piece.
    ///
    /// Each piece has at most `most` elements of a part.
    pub(crate) fn piece(&self, part: u32, piece: usize, most: usize) -> Range<usize> {
        let range = self.range(part);
        let start = range.end.min(range.start + piece * most);
        start..range.end.min(start + most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_parts_cover_the_buffer_without_gap_or_overlap() {
        for count in 1..=9 {
            for len in [0, 1, 2, 7, 8, 9, 100] {
                let parts = Parts::even(count, len);
                let covered: Vec<usize> = (0..count).flat_map(|part| parts.range(part)).collect();
                assert_eq!(covered, (0..len).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn pieces_cover_a_part_and_then_are_empty() {
        let parts = Parts::of(&[2, 0, 7]);
        assert_eq!((parts.count(), parts.longest()), (3, 7));
        let pieces: Vec<usize> = (0..4).flat_map(|piece| parts.piece(2, piece, 2)).collect();
        assert_eq!(pieces, (2..9).collect::<Vec<_>>());
        assert_eq!(parts.piece(0, 1, 2), 2..2);
        assert_eq!(parts.piece(1, 3, 2), 2..2);
        assert_eq!(Parts::only(1, 3, 5), Parts::of(&[0, 5, 0]));
    }
}
