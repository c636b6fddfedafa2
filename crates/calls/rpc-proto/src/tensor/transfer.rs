//! Conversion of the tensors of one message to parts.
//!
//! The rules, in this order:
//!
//! 1. Bytes that no tensor covers are never sent.
//! 2. Tensors whose bytes overlap share a part, and overlap in the same way at the receiver.
//! 3. Bytes without gaps are sent without a copy, with the strides of their tensors.
//! 4. Bytes with gaps are copied without the gaps, if strides can still describe every tensor after
//!    that. This is possible for a single tensor that slicing creates.
//! 5. Otherwise, or if there are too many blocks to check, a single tensor becomes a contiguous
//!    copy if that is smaller than its reach. All other bytes are sent with their gaps, filled with
//!    zeros.

mod grouping;

use std::ops::Range;

use super::{Coverage, TensorMeta};
use grouping::Member;

/// Tensor to be sent.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Number of the storage; views with equal numbers share a storage.
    pub storage: usize,
    /// Layout of the tensor in the storage.
    pub meta: &'a TensorMeta,
}

/// Location of a tensor at the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Index of the tensor's part; `None` if the tensor has no elements.
    pub part: Option<usize>,
    /// Layout of the tensor in the part.
    pub meta: TensorMeta,
}

/// Parts of a message, and the locations of its tensors in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Parts to send. The storage of each part is that of its tensors.
    pub parts: Vec<Part>,
    /// One placement for each tensor, in their order.
    pub placements: Vec<Placement>,
}

/// Bytes of a storage that are sent together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Number of the storage.
    pub storage: usize,
    /// Bytes of the part.
    pub content: Content,
}

/// Bytes of a part, and their order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// This range without a copy.
    Slice(Range<usize>),
    /// The blocks of this coverage, in order.
    Blocks(Coverage),
    /// These ranges, in order.
    Runs(Vec<Range<usize>>),
    /// The whole range, with zeros where no tensor has a byte.
    Masked {
        /// Range from the first byte to the last.
        reach: Range<usize>,
        /// Bytes that are sent unchanged.
        covered: Vec<Coverage>,
    },
}

impl Part {
    /// Returns the range of the storage that the part needs.
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

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match &self.content {
            Content::Slice(reach) | Content::Masked { reach, .. } => reach.len(),
            Content::Blocks(coverage) => coverage.block_count() * coverage.block,
            Content::Runs(runs) => runs.iter().map(ExactSizeIterator::len).sum(),
        }
    }

    /// `true` if the part has no bytes. No plan has such a part.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes of the part to `out`.
    ///
    /// `reach` contains the bytes of the storage at [`reach`](Self::reach).
    ///
    /// # Panics
    ///
    /// Panics if `reach` is shorter than that range.
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

/// Plans the parts for these tensors.
pub fn plan(views: &[View<'_>]) -> Plan {
    let mut members: Vec<Member<'_>> = views
        .iter()
        .enumerate()
        .filter_map(|(number, view)| {
            let coverage = Coverage::of(view.meta)?;
            Some(Member {
                number,
                storage: view.storage,
                meta: view.meta,
                coverage,
            })
        })
        .collect();
    members.sort_by_key(|member| (member.storage, member.coverage.reach().start));

    let mut parts = Vec::new();
    let mut placements: Vec<Placement> = views
        .iter()
        .map(|view| Placement {
            part: None,
            meta: view.meta.clone().at(0).expect("the offset becomes smaller"),
        })
        .collect();
    for chunk in neighbours(&members) {
        for packed in grouping::pack(chunk) {
            for (number, meta) in packed.metas {
                placements[number] = Placement {
                    part: Some(parts.len()),
                    meta,
                };
            }
            parts.push(packed.part);
        }
    }
    Plan { parts, placements }
}

/// Splits sorted members where the storage changes or reaches do not overlap.
fn neighbours<'m, 'a>(members: &'m [Member<'a>]) -> Vec<&'m [Member<'a>]> {
    let mut chunks = Vec::new();
    let mut rest = members;
    while let Some(first) = rest.first() {
        let mut end = first.coverage.reach().end;
        let connected = |member: &&Member<'_>| {
            let reach = member.coverage.reach();
            let connects = member.storage == first.storage && reach.start < end;
            end = end.max(reach.end);
            connects
        };
        let len = rest.iter().take_while(connected).count();
        let (chunk, others) = rest.split_at(len);
        chunks.push(chunk);
        rest = others;
    }
    chunks
}

#[cfg(test)]
mod tests;
