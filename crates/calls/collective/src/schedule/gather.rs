//! Schedules from all ranks to one or to all. Part `n` is the data of rank `n`.

use super::{Arrival, Message, Schedule, Step, add, distances, one, subtract};

/// Each rank sends its part to the root, in the order of the distances.
pub(crate) fn direct_gather(rank: u32, world_size: u32, root: u32) -> Schedule {
    Schedule::narrow((1..world_size).map(|distance| {
        let giver = add(root, distance, world_size);
        Step {
            send: (rank == giver).then(|| one(root, giver)),
            receive: (rank == root).then(|| (one(giver, giver), Arrival::Replace)),
        }
    }))
}

/// All-gather with few bytes: every part travels around the ring.
pub(crate) fn ring_gather(rank: u32, world_size: u32) -> Schedule {
    ring(rank, world_size, 0, Arrival::Replace)
}

/// Returns the schedule that passes parts around the ring.
///
/// Each rank first sends the part with the number `rank - behind`, modulo the world size.
pub(super) fn ring(rank: u32, world_size: u32, behind: u32, arrival: Arrival) -> Schedule {
    let next = add(rank, 1, world_size);
    let previous = subtract(rank, 1, world_size);
    Schedule::narrow((behind..world_size - 1 + behind).map(|step| {
        let part = subtract(rank, step, world_size);
        let before = subtract(part, 1, world_size);
        Step {
            send: Some(one(next, part)),
            receive: Some((one(previous, before), arrival)),
        }
    }))
}

/// All-gather in few steps (Bruck).
///
/// Before step `n` each rank has `2^n` parts, starting with its own part, modulo the world size. In
/// the step it gets at most the same number of further parts.
pub(crate) fn bruck(rank: u32, world_size: u32) -> Schedule {
    let mut widest = 1;
    let steps = distances(world_size)
        .map(|distance| {
            let count = distance.min(world_size - distance);
            widest = widest.max(count);
            let message = |peer, part| Message { peer, part, count };
            let (below, above) = (
                subtract(rank, distance, world_size),
                add(rank, distance, world_size),
            );
            Step {
                send: Some(message(below, rank)),
                receive: Some((message(above, above), Arrival::Replace)),
            }
        })
        .collect();
    Schedule { widest, steps }
}

/// All-to-all in pairs.
///
/// In step `n` each rank sends to the rank `n` above and receives from the rank `n` below.
///
/// There are separate buffers to send and to receive. Their parts have the number of the rank at
/// the other end.
pub(crate) fn pairwise(rank: u32, world_size: u32) -> Schedule {
    Schedule::narrow((1..world_size).map(|distance| {
        let (to, from) = (
            add(rank, distance, world_size),
            subtract(rank, distance, world_size),
        );
        Step {
            send: Some(one(to, to)),
            receive: Some((one(from, from), Arrival::Replace)),
        }
    }))
}
