//! Schedules from one rank to all, and from every rank to every rank.

use super::{Arrival, Schedule, Step, add, distances, one, ring_gather, subtract, whole};

/// Barrier: in step `n` each rank notifies the rank `2^n` above it.
///
/// Rank numbers are modulo the world size.
pub(crate) fn dissemination(rank: u32, world_size: u32) -> Schedule {
    Schedule::narrow(distances(world_size).map(|distance| Step {
        send: Some(whole(add(rank, distance, world_size))),
        receive: Some((
            whole(subtract(rank, distance, world_size)),
            Arrival::Replace,
        )),
    }))
}

/// Broadcast in few steps, along a binomial tree.
///
/// In step `n` each of the `2^n` ranks that have the data sends it to a further rank, if any.
///
/// ```text
///   step 0   root -> 1
///   step 1   root -> 2   1 -> 3
///   step 2   root -> 4   1 -> 5   2 -> 6   3 -> 7        (numbers relative to the root)
/// ```
pub(crate) fn binomial_tree(rank: u32, world_size: u32, root: u32) -> Schedule {
    let relative = subtract(rank, root, world_size);
    Schedule::narrow(distances(world_size).map(|distance| {
        let mut step = Step::default();
        if relative < distance {
            if world_size - relative > distance {
                step.send = Some(whole(add(rank, distance, world_size)));
            }
        } else if relative - distance < distance {
            let parent = whole(subtract(rank, distance, world_size));
            step.receive = Some((parent, Arrival::Replace));
        }
        step
    }))
}

/// Scatter: the root sends each rank the part with its number, in order.
pub(crate) fn direct_scatter(rank: u32, world_size: u32, root: u32) -> Schedule {
    Schedule::narrow((1..world_size).map(|distance| {
        let taker = add(root, distance, world_size);
        Step {
            send: (rank == root).then(|| one(taker, taker)),
            receive: (rank == taker).then(|| (one(root, taker), Arrival::Replace)),
        }
    }))
}

/// Broadcast with few bytes: scattered parts travel around the ring.
///
/// Each rank, including the root, sends less than twice the buffer.
pub(crate) fn scatter_and_ring(rank: u32, world_size: u32, root: u32) -> Schedule {
    direct_scatter(rank, world_size, root).then(ring_gather(rank, world_size))
}
