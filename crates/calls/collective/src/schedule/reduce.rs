//! Schedules that combine the data of all ranks.

use super::gather::ring;
use super::{Arrival, Schedule, Step, direct_gather, distances, ring_gather, whole};

/// All-reduce in few steps, by recursive doubling.
///
/// In step `n` each rank exchanges all data with the rank whose number differs in bit `n`. Ranks
/// beyond the last power of two send their data to another rank first, and get the result at the
/// end.
pub(crate) fn recursive_doubling(rank: u32, world_size: u32) -> Schedule {
    let inner = 1 << world_size.ilog2();
    let extra = world_size - inner;
    let mut steps = Vec::new();
    let mut before_and_after = (Step::default(), Step::default());
    if rank >= inner {
        before_and_after.0.send = Some(whole(rank - inner));
        before_and_after.1.receive = Some((whole(rank - inner), Arrival::Replace));
    } else if rank < extra {
        before_and_after.0.receive = Some((whole(rank + inner), Arrival::Combine));
        before_and_after.1.send = Some(whole(rank + inner));
    }
    if extra > 0 {
        steps.push(before_and_after.0);
    }
    for distance in distances(inner) {
        steps.push(if rank < inner {
            let peer = whole(rank ^ distance);
            Step {
                send: Some(peer),
                receive: Some((peer, Arrival::Combine)),
            }
        } else {
            Step::default()
        });
    }
    if extra > 0 {
        steps.push(before_and_after.1);
    }
    Schedule::narrow(steps)
}

/// Reduce-scatter: parts travel around the ring and are combined at each rank.
///
/// There is one part per rank, and part `n` is complete at rank `n`.
pub(crate) fn ring_reduce_scatter(rank: u32, world_size: u32) -> Schedule {
    ring(rank, world_size, 1, Arrival::Combine)
}

/// All-reduce with few bytes: reduce-scatter, then a ring all-gather.
pub(crate) fn ring_reduce(rank: u32, world_size: u32) -> Schedule {
    ring_reduce_scatter(rank, world_size).then(ring_gather(rank, world_size))
}

/// Reduce to one rank with few bytes: reduce-scatter, then a gather.
pub(crate) fn reduce_to(rank: u32, world_size: u32, root: u32) -> Schedule {
    ring_reduce_scatter(rank, world_size).then(direct_gather(rank, world_size, root))
}
