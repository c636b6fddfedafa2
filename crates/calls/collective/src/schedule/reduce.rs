//! Combining what all ranks have.

use super::gather::ring;
use super::{Arrival, Schedule, Step, direct_gather, distances, ring_gather, whole};

/// All-reduce in few steps: in step `n` each rank exchanges everything with the one whose number
/// differs in bit `n`. Ranks beyond the last power of two hand theirs in before, and get the result
/// after.
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

/// Reduce-scatter: one part per rank travels around the ring and is combined at each stop; part `n`
/// is finished at rank `n`.
pub(crate) fn ring_reduce_scatter(rank: u32, world_size: u32) -> Schedule {
    ring(rank, world_size, 1, Arrival::Combine)
}

/// All-reduce with few bytes: reduce-scatter, and the finished parts travel around once more.
pub(crate) fn ring_reduce(rank: u32, world_size: u32) -> Schedule {
    ring_reduce_scatter(rank, world_size).then(ring_gather(rank, world_size))
}

/// Reduce to one rank with few bytes: reduce-scatter, and the finished parts go to the root.
pub(crate) fn reduce_to(rank: u32, world_size: u32, root: u32) -> Schedule {
    ring_reduce_scatter(rank, world_size).then(direct_gather(rank, world_size, root))
}
