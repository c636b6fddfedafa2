//! Schedules: the messages of one rank, step by step.
//!
//! These are pure functions from ranks to steps.
//!
//! A buffer is cut into numbered parts ([`Parts`]). In every step a rank sends at most one run of
//! parts to one rank, and receives at most one run from one rank. A rank sends first, and does not
//! wait until the data is sent.
//!
//! | file | algorithms |
//! |---|---|
//! | `spread.rs` | from one rank to all: trees, scatter; all to all: dissemination |
//! | `gather.rs` | from all ranks to one or to all: direct, Bruck, ring; all-to-all |
//! | `reduce.rs` | combinations: recursive doubling, rings, a ring and a gather to one rank |
//! | `parts.rs` | elements of a part |
//!
//! **INV-C1**: if one rank sends a message in step `n`, the other rank receives the message in step
//! `n`. No order of waiting can therefore be circular: a rank that waits in step `n` waits for
//! ranks in earlier steps, or for ranks in step `n` that have already sent.

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

/// Steps of one rank in one algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Number of parts of the longest message, the same on all ranks; at least 1.
    pub(crate) widest: u32,
    /// Steps of the rank.
    ///
    /// All ranks have the same number of steps. In some steps a rank may have nothing to do.
    pub(crate) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Step {
    /// Message to send, with the values at the beginning of the step.
    pub(crate) send: Option<Message>,
    /// Message to receive, and its use.
    pub(crate) receive: Option<(Message, Arrival)>,
}

/// Parts that are sent together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// Rank at the other end.
    pub(crate) peer: u32,
    /// Number of the first part.
    pub(crate) part: u32,
    /// Number of parts. After the last part of the buffer the first part follows.
    pub(crate) count: u32,
}

/// Use of received parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The received parts are combined with the own parts.
    Combine,
    /// The received parts replace the own parts.
    Replace,
}

impl Schedule {
    /// Creates a schedule of messages with one part each.
    fn narrow(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().collect();
        Self { widest: 1, steps }
    }

    /// Appends the steps of another schedule.
    fn then(mut self, next: Self) -> Self {
        self.steps.extend(next.steps);
        self
    }
}

/// Returns the message with the only part of an uncut buffer.
fn whole(peer: u32) -> Message {
    one(peer, 0)
}

/// Returns the message with one of several parts.
fn one(peer: u32, part: u32) -> Message {
    Message {
        peer,
        part,
        count: 1,
    }
}

/// Returns 1, 2, 4, … below `world_size`.
fn distances(world_size: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|bit| 1 << bit)
        .take_while(move |distance| *distance < world_size)
}

/// Returns `rank + distance` modulo the world size.
///
/// `distance` is at most the world size.
fn add(rank: u32, distance: u32, world_size: u32) -> u32 {
    let sum = u64::from(rank) + u64::from(distance);
    (sum % u64::from(world_size)) as u32
}

/// Returns `rank - distance` modulo the world size.
///
/// `distance` is at most the world size.
fn subtract(rank: u32, distance: u32, world_size: u32) -> u32 {
    add(rank, world_size - distance, world_size)
}
