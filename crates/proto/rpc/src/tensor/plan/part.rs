//! A part of a message: which bytes of a storage, and how they are copied together.

use std::ops::Range;

use crate::tensor::Coverage;

/// Some bytes of a storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Which storage.
    pub storage: usize,
    /// Which of its bytes.
    pub content: Content,
}

/// Which bytes, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// These, as they lie: nothing is copied.
    Slice(Range<usize>),
    /// The blocks of this, one after another.
    Blocks(Coverage),
    /// These, one after another.
    Runs(Vec<Range<usize>>),
    /// All from the first to the last, with zeros where none of these has a byte.
    Masked {
        /// From the first byte to the last.
        reach: Range<usize>,
        /// The bytes that are sent.
        covered: Vec<Coverage>,
    },
}

impl Part {
    /// From the first byte of the storage that it needs to the last.
    pub fn reach(&self) -> Range<usize> {
        match &self.content {
            Content::Slice(reach) | Content::Masked { reach, .. } => reach.clone(),
            Content::Blocks(coverage) => coverage.reach(),
            Content::Runs(runs) => {
                let start = runs.first().map_or(0, |run| run.start);
                start..runs.last().map_or(0, |run| run.end)
            }
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Slice(reach) | Content::Masked { reach, .. } => reach.len(),
            Content::Blocks(coverage) => coverage.block_count() * coverage.block,
            Content::Runs(runs) => runs.iter().map(ExactSizeIterator::len).sum(),
        }
    }

    /// Whether it has no bytes. No plan has such a part.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes of the part to `out`. `reach` are the bytes of the storage at
    /// [`reach`](Self::reach).
    ///
    /// # Panics
    ///
    /// If `reach` is shorter than that.
    pub fn write(&self, reach: &[u8], out: &mut Vec<u8>) {
        let base = self.reach().start;
        out.reserve(self.len());
        match &self.content {
            Content::Slice(range) => out.extend_from_slice(&reach[..range.len()]),
            Content::Blocks(coverage) => {
                for start in coverage.blocks() {
                    out.extend_from_slice(&reach[start - base..][..coverage.block]);
                }
            }
            Content::Runs(runs) => {
                for run in runs {
                    out.extend_from_slice(&reach[run.start - base..run.end - base]);
                }
            }
            Content::Masked {
                reach: range,
                covered,
            } => {
                let begin = out.len();
                out.resize(begin + range.len(), 0);
                for coverage in covered {
                    for start in coverage.blocks() {
                        let block = start - base..start - base + coverage.block;
                        out[begin..][block.clone()].copy_from_slice(&reach[block]);
                    }
                }
            }
        }
    }
}
