//! Parts for tensors of one storage whose reaches overlap.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Content, Part};
use crate::tensor::{Coverage, TensorMeta};

/// Maximum number of blocks to process; beyond it, `irregular` makes one part.
const BLOCK_LIMIT: usize = 1 << 20;

#[derive(Debug, Clone)]
pub(super) struct Member<'a> {
    /// Index of the tensor in the message.
    pub(super) number: usize,
    /// Number of its storage.
    pub(super) storage: usize,
    pub(super) meta: &'a TensorMeta,
    /// Bytes that the tensor covers.
    pub(super) coverage: Coverage,
}

/// Part, and the layouts of the tensors in it.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) part: Part,
    /// Index of each tensor in the message, and its layout in the part.
    pub(super) metas: Vec<(usize, TensorMeta)>,
}

/// Creates the parts for at least one tensor of one storage, sorted by start.
pub(super) fn pack(members: &[Member<'_>]) -> Vec<Packed> {
    let members: Vec<&Member<'_>> = members.iter().collect();
    if let Some(packed) = regular(&members) {
        return vec![packed];
    }
    let blocks: usize = members
        .iter()
        .map(|member| member.coverage.block_count())
        .fold(0, usize::saturating_add);
    if blocks > BLOCK_LIMIT {
        return vec![irregular(&members)];
    }
    let sorted = sorted_blocks(&members);
    components(&sorted, members.len())
        .into_iter()
        .map(|component| {
            let chosen: Vec<_> = component.iter().map(|&at| members[at]).collect();
            let own = |block: &&Block| component.contains(&block.member);
            regular(&chosen)
                .or_else(|| without_gaps(&chosen, merge(sorted.iter().filter(own))))
                .unwrap_or_else(|| irregular(&chosen))
        })
        .collect()
}

/// Returns one part if dense tensors cover the reach or share their gaps.
fn regular(members: &[&Member<'_>]) -> Option<Packed> {
    if is_covered_densely(members) {
        return Some(slice(members));
    }
    let is_nested = same_coverage(members) && members[0].coverage.is_nested();
    is_nested.then(|| nested(members))
}

/// `true` if the tensors without gaps cover the whole reach.
fn is_covered_densely(members: &[&Member<'_>]) -> bool {
    let whole = reach_of(members);
    let dense = members.iter().filter(|member| member.coverage.is_dense());
    let end = dense.fold(whole.start, |end, member| {
        let reach = member.coverage.reach();
        if reach.start <= end {
            end.max(reach.end)
        } else {
            end
        }
    });
    end == whole.end
}

fn same_coverage(members: &[&Member<'_>]) -> bool {
    members
        .iter()
        .all(|member| member.coverage == members[0].coverage)
}

fn reach_of(members: &[&Member<'_>]) -> Range<usize> {
    let reaches = members.iter().map(|member| member.coverage.reach());
    reaches
        .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))
        .expect("a group has members")
}

/// Creates a part of the unchanged storage: tensors keep their strides.
fn slice(members: &[&Member<'_>]) -> Packed {
    let reach = reach_of(members);
    Packed {
        metas: moved(members, reach.start),
        part: Part {
            storage: members[0].storage,
            content: Content::Slice(reach),
        },
    }
}

/// Creates a part without gaps for tensors with the same separate blocks.
fn nested(members: &[&Member<'_>]) -> Packed {
    let coverage = &members[0].coverage;
    let mut steps = BTreeMap::new();
    let mut packed = coverage.block;
    for repeat in coverage.repeats.iter().rev() {
        steps.insert(repeat.step, packed);
        packed *= repeat.count;
    }
    let metas = members
        .iter()
        .map(|member| {
            let meta = restrided(member, 0, &steps).expect("blocks are whole elements");
            (member.number, meta)
        })
        .collect();
    Packed {
        metas,
        part: Part {
            storage: members[0].storage,
            content: Content::Blocks(coverage.clone()),
        },
    }
}

/// Leaves out the gaps between runs, if strides can still describe each tensor.
fn without_gaps(members: &[&Member<'_>], runs: Vec<Range<usize>>) -> Option<Packed> {
    let mut before = Vec::with_capacity(runs.len());
    let mut total = 0;
    for run in &runs {
        before.push(total);
        total += run.len();
    }
    let position = |byte: usize| {
        let run = runs.partition_point(|run| run.end <= byte);
        before[run] + (byte - runs[run].start)
    };
    let mut metas = Vec::with_capacity(members.len());
    for member in members {
        let Coverage { start, repeats, .. } = &member.coverage;
        let first = position(*start);
        let mut steps = BTreeMap::new();
        for repeat in repeats {
            steps.insert(
                repeat.step,
                position(start + repeat.step).checked_sub(first)?,
            );
        }
        let mut blocks = member.coverage.blocks();
        loop {
            let indices = blocks.indices().iter().zip(repeats);
            let expected: usize = indices
                .map(|(&index, repeat)| index * steps[&repeat.step])
                .sum();
            let Some(block) = blocks.next() else { break };
            if position(block) != first + expected {
                return None;
            }
        }
        metas.push((member.number, restrided(member, first, &steps)?));
    }
    Some(Packed {
        metas,
        part: Part {
            storage: members[0].storage,
            content: Content::Runs(runs),
        },
    })
}

/// Creates the part for tensors that strides cannot describe without the gaps.
fn irregular(members: &[&Member<'_>]) -> Packed {
    let reach = reach_of(members);
    let storage = members[0].storage;
    if let [alone] = members
        && alone.meta.byte_len() < reach.len()
    {
        let (data_type, shape) = (alone.meta.data_type(), alone.meta.shape().to_vec());
        let meta = TensorMeta::contiguous(data_type, shape).expect("the copy is not larger");
        let content = Content::Blocks(Coverage::in_order(alone.meta).expect("not empty"));
        return Packed {
            part: Part { storage, content },
            metas: vec![(alone.number, meta)],
        };
    }
    let mut covered: Vec<Coverage> = Vec::new();
    for member in members {
        if !covered.contains(&member.coverage) {
            covered.push(member.coverage.clone());
        }
    }
    Packed {
        metas: moved(members, reach.start),
        part: Part {
            storage,
            content: Content::Masked { reach, covered },
        },
    }
}

/// Returns the layouts in a part that begins at byte `start` of the storage.
fn moved(members: &[&Member<'_>], start: usize) -> Vec<(usize, TensorMeta)> {
    members
        .iter()
        .map(|member| {
            let offset = member.meta.offset() - start;
            let meta = member.meta.clone().at(offset);
            (member.number, meta.expect("the offset becomes smaller"))
        })
        .collect()
}

/// Returns the tensor with other distances between its blocks (bytes).
///
/// The layout inside a block does not change.
fn restrided(
    member: &Member<'_>,
    offset: usize,
    steps: &BTreeMap<usize, usize>,
) -> Option<TensorMeta> {
    let meta = member.meta;
    let size = meta.data_type().size();
    let mut strides = Vec::with_capacity(meta.strides().len());
    for (&count, &stride) in meta.shape().iter().zip(meta.strides()) {
        let step = match steps.get(&stride.saturating_mul(size)) {
            // The stride of a single index is never used, and may have any value.
            _ if count == 1 => 0,
            Some(step) => *step,
            None => stride * size,
        };
        if step % size != 0 {
            return None;
        }
        strides.push(step / size);
    }
    let shape = meta.shape().to_vec();
    TensorMeta::new(meta.data_type(), shape, strides, offset).ok()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    start: usize,
    end: usize,
    member: usize,
}

fn sorted_blocks(members: &[&Member<'_>]) -> Vec<Block> {
    let mut blocks = Vec::new();
    for (member, of) in members.iter().enumerate() {
        let len = of.coverage.block;
        blocks.extend(of.coverage.blocks().map(|start| Block {
            start,
            end: start + len,
            member,
        }));
    }
    blocks.sort_unstable();
    blocks
}

/// Groups the members that share bytes, directly or through other members.
fn components(sorted: &[Block], members: usize) -> Vec<Vec<usize>> {
    let mut label: Vec<usize> = (0..members).collect();
    let mut end = 0;
    let mut last = 0;
    for block in sorted {
        if block.start < end {
            let (from, to) = (label[block.member], label[last]);
            if from != to {
                for one in &mut label {
                    if *one == from {
                        *one = to;
                    }
                }
            }
        }
        if block.end > end {
            end = block.end;
            last = block.member;
        }
    }
    let mut components: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (member, &label) in label.iter().enumerate() {
        components.entry(label).or_default().push(member);
    }
    components.into_values().collect()
}

/// Merges blocks that overlap or touch.
fn merge<'a>(sorted: impl Iterator<Item = &'a Block>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for block in sorted {
        match runs.last_mut() {
            Some(run) if block.start <= run.end => run.end = run.end.max(block.end),
            _ => runs.push(block.start..block.end),
        }
    }
    runs
}
