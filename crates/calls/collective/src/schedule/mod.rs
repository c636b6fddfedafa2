//! Schedules: the messages of one rank, step by step.
//!
//! Pure: ranks in, steps out.
//!
//! A buffer is cut into numbered parts ([`Parts`]). In every step a rank sends at most one run of
//! parts to one rank and receives at most one run from one rank; the sending comes first and is not
//! waited for.
//!
//! | file | algorithms |
//! |---|---|
//! | `spread.rs` | from one to all, and everybody heard of: dissemination, trees, scatter |
//! | `gather.rs` | from all to one or to all: direct, Bruck, ring; all-to-all |
//! | `reduce.rs` | combining: recursive doubling, rings, a tree to one rank |
//! | `parts.rs` | which elements a part has |
//!
//! **INV-C1**: what one rank sends in step `n`, the other receives in step `n`. Because of this no
//! order of waiting can be circular: a rank that waits in step `n` waits for ranks that are in an
//! earlier step, or in step `n` and have sent already.

mod gather;
mod parts;
mod reduce;
mod spread;
#[cfg(test)]
mod tests;

pub(crate) use self::gather::{bruck, direct_gather, pairwise, ring_gather};
pub(crate) use self::parts::Parts;
pub(crate) use self::reduce::{recursive_doubling, reduce_to, ring_reduce, ring_reduce_scatter};
pub(crate) use self::spread::{binomial_tree, direct_scatter, dissemination, scatter_and_ring};

/// The part of one rank in one algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Number of parts of the longest message, the same on all ranks; at least 1.
    pub(crate) widest: u32,
    /// The steps.
    ///
    /// All ranks have equally many; in some a rank may have nothing to do.
    pub(crate) steps: Vec<Step>,
}

/// The part of one rank in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Step {
    /// The message to send, as it is at the beginning of the step.
    pub(crate) send: Option<Message>,
    /// The message to receive, and its use.
    pub(crate) receive: Option<(Message, Arrival)>,
}

/// Some parts on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// The rank at the other end.
    pub(crate) peer: u32,
    /// The first of them.
    pub(crate) part: u32,
    /// Number of parts, of which those beyond the last part are the first ones.
    pub(crate) count: u32,
}

/// Use of parts that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// They are combined with the own parts.
    Combine,
    /// They take the place of the own parts.
    Replace,
}

impl Schedule {
    /// Of messages with one part each.
    fn narrow(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().collect();
        Self { widest: 1, steps }
    }

    /// Both, in this order.
    fn then(mut self, next: Self) -> Self {
        self.steps.extend(next.steps);
        self
    }
}

/// The only part of a buffer that is not cut.
fn whole(peer: u32) -> Message {
    one(peer, 0)
}

/// One part of several.
fn one(peer: u32, part: u32) -> Message {
    Message {
        peer,
        part,
        count: 1,
    }
}

/// 1, 2, 4, … below `world_size`.
fn distances(world_size: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|bit| 1 << bit)
        .take_while(move |distance| *distance < world_size)
}

/// `rank + distance` modulo the world size; `distance` is at most the world size.
fn add(rank: u32, distance: u32, world_size: u32) -> u32 {
    let sum = u64::from(rank) + u64::from(distance);
    (sum % u64::from(world_size)) as u32
}

/// `rank - distance` modulo the world size; `distance` is at most the world size.
fn subtract(rank: u32, distance: u32, world_size: u32) -> u32 {
    add(rank, world_size - distance, world_size)
}
