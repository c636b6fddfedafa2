//! Who sends what to whom, step by step. Pure: ranks in, steps out.
//!
//! A buffer is cut into equal parts. In every step a rank sends at most one part to one rank and
//! receives at most one part from one rank; the sending comes first and is not waited for.
//!
//! S1: what one rank sends in step `n`, the other receives in step `n`. Because of this no order of
//! waiting can be circular: a rank that waits in step `n` waits for ranks that are in an earlier
//! step, or in step `n` and have sent already.

use std::ops::Range;

/// What one rank does in one algorithm.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Schedule {
    /// Into how many parts the buffer is cut; at least 1.
    pub(crate) parts: u32,
    /// The steps. All ranks have equally many; in some a rank may have nothing to do.
    pub(crate) steps: Vec<Step>,
}

/// What one rank does in one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Step {
    /// What it sends, as it is at the beginning of the step.
    pub(crate) send: Option<Message>,
    /// What it receives, and what becomes of it.
    pub(crate) receive: Option<(Message, Arrival)>,
}

/// One part on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message {
    /// The rank at the other end.
    pub(crate) peer: u32,
    /// Which part of the buffer.
    pub(crate) part: u32,
}

/// What becomes of a part that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It is combined with the own part.
    Combine,
    /// It takes the place of the own part.
    Replace,
}

impl Schedule {
    /// The elements of one part in a buffer of `len` elements. Parts differ by one element at most.
    pub(crate) fn range(&self, part: u32, len: usize) -> Range<usize> {
        let parts = self.parts as usize;
        let (each, rest) = (len / parts, len % parts);
        let start = |part: usize| part * each + part.min(rest);
        start(part as usize)..start(part as usize + 1)
    }
}

/// Barrier: in step `n` each rank tells the one `2^n` above it, modulo the world size.
pub(crate) fn dissemination(rank: u32, world_size: u32) -> Schedule {
    let steps = distances(world_size)
        .map(|distance| Step {
            send: Some(whole(add(rank, distance, world_size))),
            receive: Some((
                whole(subtract(rank, distance, world_size)),
                Arrival::Replace,
            )),
        })
        .collect();
    Schedule { parts: 1, steps }
}

/// Broadcast: in step `n` the `2^n` ranks that have the data give it to as many others.
///
/// ```text
///   step 0   root -> 1
///   step 1   root -> 2   1 -> 3
///   step 2   root -> 4   1 -> 5   2 -> 6   3 -> 7        (numbers relative to the root)
/// ```
pub(crate) fn binomial_tree(rank: u32, world_size: u32, root: u32) -> Schedule {
    let relative = subtract(rank, root, world_size);
    let steps = distances(world_size)
        .map(|distance| {
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
        })
        .collect();
    Schedule { parts: 1, steps }
}

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
    Schedule { parts: 1, steps }
}

/// All-reduce with few bytes: one part per rank travels around the ring and is combined at each
/// stop, then the finished parts travel around once more.
pub(crate) fn ring(rank: u32, world_size: u32) -> Schedule {
    let next = add(rank, 1, world_size);
    let previous = subtract(rank, 1, world_size);
    let round = |first_part: u32, arrival: Arrival| {
        (0..world_size - 1).map(move |step| {
            let part = subtract(first_part, step, world_size);
            Step {
                send: Some(Message { peer: next, part }),
                receive: Some((
                    Message {
                        peer: previous,
                        part: subtract(part, 1, world_size),
                    },
                    arrival,
                )),
            }
        })
    };
    Schedule {
        parts: world_size,
        steps: round(rank, Arrival::Combine)
            .chain(round(next, Arrival::Replace))
            .collect(),
    }
}

/// 1, 2, 4, … below `world_size`.
fn distances(world_size: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS)
        .map(|bit| 1 << bit)
        .take_while(move |distance| *distance < world_size)
}

fn whole(peer: u32) -> Message {
    Message { peer, part: 0 }
}

/// `rank + distance` modulo the world size; `distance` is less than the world size.
fn add(rank: u32, distance: u32, world_size: u32) -> u32 {
    let room = world_size - distance;
    if rank >= room {
        rank - room
    } else {
        rank + distance
    }
}

/// `rank - distance` modulo the world size; `distance` is less than the world size.
fn subtract(rank: u32, distance: u32, world_size: u32) -> u32 {
    if rank >= distance {
        rank - distance
    } else {
        rank + (world_size - distance)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has contributed how often to a part.
    type Contributions = Vec<u32>;

    /// Plays all ranks in lockstep and returns what each has in each part at the end. Panics where
    /// S1 does not hold.
    fn play(schedules: &[Schedule]) -> Vec<Vec<Contributions>> {
        let world_size = schedules.len();
        let parts = schedules[0].parts as usize;
        let mut state: Vec<Vec<Contributions>> = (0..world_size)
            .map(|rank| {
                let own = (0..world_size)
                    .map(|other| u32::from(other == rank))
                    .collect();
                vec![own; parts]
            })
            .collect();
        for step in 0..schedules[0].steps.len() {
            let before = state.clone();
            let mut sent = 0;
            let mut received = 0;
            for (rank, schedule) in schedules.iter().enumerate() {
                assert_eq!(schedule.steps.len(), schedules[0].steps.len());
                sent += usize::from(schedule.steps[step].send.is_some());
                let Some((message, arrival)) = schedule.steps[step].receive else {
                    continue;
                };
                received += 1;
                let peer = message.peer as usize;
                assert_ne!(peer, rank, "nobody talks to itself");
                let matching = Message {
                    peer: u32::try_from(rank).unwrap(),
                    part: message.part,
                };
                assert_eq!(schedules[peer].steps[step].send, Some(matching), "S1");
                let incoming = &before[peer][message.part as usize];
                let own = &mut state[rank][message.part as usize];
                match arrival {
                    Arrival::Replace => own.clone_from(incoming),
                    Arrival::Combine => {
                        for (own, incoming) in own.iter_mut().zip(incoming) {
                            *own += incoming;
                        }
                    }
                }
            }
            assert_eq!(sent, received, "S1");
        }
        state
    }

    fn all(world_size: u32, schedule: impl Fn(u32) -> Schedule) -> Vec<Schedule> {
        (0..world_size).map(schedule).collect()
    }

    #[test]
    fn all_reduce_takes_every_element_of_every_rank_exactly_once() {
        for world_size in 1..=17 {
            for algorithm in [recursive_doubling, ring] {
                let schedules = all(world_size, |rank| algorithm(rank, world_size));
                let once = vec![1; world_size as usize];
                for parts in play(&schedules) {
                    assert!(parts.iter().all(|part| *part == once), "{world_size} ranks");
                }
            }
        }
    }

    #[test]
    fn broadcast_brings_the_data_of_the_root_to_everybody() {
        for world_size in 1..=17 {
            for root in 0..world_size {
                let schedules = all(world_size, |rank| binomial_tree(rank, world_size, root));
                let roots: Vec<u32> = (0..world_size)
                    .map(|rank| u32::from(rank == root))
                    .collect();
                for parts in play(&schedules) {
                    assert_eq!(parts[0], roots, "{world_size} ranks, root {root}");
                }
            }
        }
    }

    #[test]
    fn after_a_barrier_everybody_has_heard_of_everybody() {
        for world_size in 1..=17 {
            let mut schedules = all(world_size, |rank| dissemination(rank, world_size));
            // A barrier carries no data. Combining shows who has heard of whom.
            for step in schedules.iter_mut().flat_map(|one| &mut one.steps) {
                step.receive = step.receive.map(|(message, _)| (message, Arrival::Combine));
            }
            for parts in play(&schedules) {
                assert!(parts[0].iter().all(|heard| *heard > 0));
            }
        }
    }

    #[test]
    fn parts_cover_the_buffer_without_gap_or_overlap() {
        for parts in 1..=9 {
            let schedule = Schedule {
                parts,
                steps: Vec::new(),
            };
            for len in [0, 1, 2, 7, 8, 9, 100] {
                let covered: Vec<usize> = (0..parts)
                    .flat_map(|part| schedule.range(part, len))
                    .collect();
                assert_eq!(covered, (0..len).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn the_largest_world_does_not_overflow() {
        let most = u32::MAX;
        for rank in [0, 1, most / 2, most - 1] {
            assert_eq!(dissemination(rank, most).steps.len(), 32);
            assert_eq!(binomial_tree(rank, most, most - 1).steps.len(), 32);
            assert_eq!(recursive_doubling(rank, most).steps.len(), 33);
        }
    }
}
