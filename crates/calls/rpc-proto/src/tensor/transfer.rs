//! How the tensors of one message become parts.
//!
//! The rules, in this order:
//!
//! 1. No byte that no tensor covers is sent.
//! 2. Tensors whose bytes overlap share a part, and overlap in the same way when they arrive.
//! 3. Bytes without gaps are sent as they lie, with the strides of their tensors: no copy.
//! 4. Bytes with gaps are copied together, the gaps left out, if that moves every tensor regularly,
//!    so that strides can say where its elements are now. This holds for all that slicing makes.
//! 5. Else a lone tensor becomes a contiguous copy if that is smaller than its reach, and what
//!    remains is sent with its gaps, zeros in them.

mod grouping;

use std::ops::Range;

use super::{Coverage, TensorMeta};
use grouping::Member;

/// A tensor to be sent.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// Which storage it is a view of: equal numbers, one storage.
    pub storage: usize,
    /// Where in the storage it lies.
    pub meta: &'a TensorMeta,
}

/// Where a tensor is found by the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// The number of its part; none if it has no elements.
    pub part: Option<usize>,
    /// Where in the part it lies.
    pub meta: TensorMeta,
}

/// The parts of a message, and where its tensors are in them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// What to send. The storage of each part is that of its tensors.
    pub parts: Vec<Part>,
    /// One for each tensor, in their order.
    pub placements: Vec<Placement>,
}

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

    /// `true` if it has no bytes. No plan has such a part.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the bytes of the part to `out`.
    ///
    /// `reach` are the bytes of the storage at [`reach`](Self::reach).
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

/// Plans what to send for these tensors.
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
            meta: view.meta.clone().at(0).expect("an offset that is smaller"),
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

/// Splits sorted members where neither storage nor reach connects them.
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
