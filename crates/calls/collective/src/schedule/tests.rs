//! Tests of schedules: all ranks in lockstep, for every world size up to 17.

use super::*;

/// Number of contributions of each rank to a part.
type Contributions = Vec<u32>;

/// Runs all ranks, and returns the contributions to each part on each rank.
///
/// Every rank begins with its own contribution in the parts for which `begins` returns `true`.
/// Panics if INV-C1 does not hold.
fn play(
    schedules: &[Schedule],
    parts: u32,
    begins: impl Fn(u32, u32) -> bool,
) -> Vec<Vec<Contributions>> {
    let world_size = schedules.len() as u32;
    let mut state: Vec<Vec<Contributions>> = (0..world_size)
        .map(|rank| {
            let own = |part| {
                (0..world_size)
                    .map(|other| u32::from(other == rank && begins(rank, part)))
                    .collect()
            };
            (0..parts).map(own).collect()
        })
        .collect();
    for step in 0..schedules[0].steps.len() {
        let before = state.clone();
        let mut sent = 0;
        let mut received = 0;
        for (rank, schedule) in schedules.iter().enumerate() {
            assert_eq!(schedule.steps.len(), schedules[0].steps.len());
            assert_eq!(schedule.widest, schedules[0].widest);
            sent += usize::from(schedule.steps[step].send.is_some());
            let Some((message, arrival)) = schedule.steps[step].receive else {
                continue;
            };
            received += 1;
            let peer = message.peer as usize;
            assert_ne!(peer, rank, "no rank sends to itself");
            assert!(message.count <= schedule.widest && message.part < parts);
            let matching = Message {
                peer: u32::try_from(rank).unwrap(),
                ..message
            };
            assert_eq!(schedules[peer].steps[step].send, Some(matching), "INV-C1");
            for part in message.part..message.part + message.count {
                let incoming = &before[peer][(part % parts) as usize];
                let own = &mut state[rank][(part % parts) as usize];
                match arrival {
                    Arrival::Replace => own.clone_from(incoming),
                    Arrival::Combine => {
                        for (own, incoming) in own.iter_mut().zip(incoming) {
                            *own += incoming;
                        }
                    }
                }
            }
        }
        assert_eq!(sent, received, "INV-C1");
    }
    state
}

fn all(world_size: u32, schedule: impl Fn(u32) -> Schedule) -> Vec<Schedule> {
    (0..world_size).map(schedule).collect()
}

fn only(world_size: u32, rank: u32) -> Contributions {
    (0..world_size)
        .map(|other| u32::from(other == rank))
        .collect()
}

#[test]
fn all_reduce_takes_every_element_of_every_rank_exactly_once() {
    for world_size in 1..=17 {
        let once = vec![1; world_size as usize];
        let doubling = all(world_size, |rank| recursive_doubling(rank, world_size));
        for parts in play(&doubling, 1, |_, _| true) {
            assert_eq!(parts[0], once);
        }
        let ring = all(world_size, |rank| ring_reduce(rank, world_size));
        for parts in play(&ring, world_size, |_, _| true) {
            assert!(parts.iter().all(|part| *part == once), "{world_size} ranks");
        }
    }
}

#[test]
fn reductions_end_where_they_should() {
    for world_size in 1..=17 {
        let once = vec![1; world_size as usize];
        let scatter = all(world_size, |rank| ring_reduce_scatter(rank, world_size));
        let ended = play(&scatter, world_size, |_, _| true);
        assert!((0..world_size as usize).all(|rank| ended[rank][rank] == once));
        for root in 0..world_size {
            let schedules = all(world_size, |rank| reduce_to(rank, world_size, root));
            let ended = play(&schedules, world_size, |_, _| true);
            assert!(ended[root as usize].iter().all(|part| *part == once));
        }
    }
}

#[test]
fn broadcast_brings_the_data_of_the_root_to_everybody() {
    for world_size in 1..=17 {
        for root in 0..world_size {
            let tree = all(world_size, |rank| binomial_tree(rank, world_size, root));
            for parts in play(&tree, 1, |rank, _| rank == root) {
                assert_eq!(parts[0], only(world_size, root));
            }
            let parts = all(world_size, |rank| scatter_and_ring(rank, world_size, root));
            for parts in play(&parts, world_size, |rank, _| rank == root) {
                assert!(parts.iter().all(|part| *part == only(world_size, root)));
            }
        }
    }
}

#[test]
fn gathering_brings_every_part_to_its_position() {
    for world_size in 1..=17 {
        let whole = |ended: &[Contributions]| {
            (0..world_size).all(|rank| ended[rank as usize] == only(world_size, rank))
        };
        for algorithm in [ring_gather, bruck] {
            let schedules = all(world_size, |rank| algorithm(rank, world_size));
            let ended = play(&schedules, world_size, |rank, part| rank == part);
            assert!(ended.iter().all(|rank| whole(rank)), "{world_size} ranks");
        }
        for root in 0..world_size {
            let schedules = all(world_size, |rank| direct_gather(rank, world_size, root));
            let ended = play(&schedules, world_size, |rank, part| rank == part);
            assert!(whole(&ended[root as usize]));
            let schedules = all(world_size, |rank| direct_scatter(rank, world_size, root));
            let ended = play(&schedules, world_size, |rank, _| rank == root);
            for (rank, parts) in ended.iter().enumerate() {
                assert_eq!(parts[rank], only(world_size, root));
            }
        }
    }
}

#[test]
fn all_to_all_meets_every_other_rank_once_and_in_the_same_step() {
    for world_size in 1..=17_u32 {
        let schedules = all(world_size, |rank| pairwise(rank, world_size));
        for (rank, schedule) in (0..).zip(&schedules) {
            let mut met: Vec<u32> = vec![rank];
            for (step, does) in schedule.steps.iter().enumerate() {
                let (send, (receive, _)) = (does.send.unwrap(), does.receive.unwrap());
                assert_eq!((send.part, receive.part), (send.peer, receive.peer));
                let other = schedules[send.peer as usize].steps[step].receive.unwrap();
                assert_eq!(other.0.peer, rank, "INV-C1");
                met.push(send.peer);
            }
            met.sort_unstable();
            assert_eq!(met, (0..world_size).collect::<Vec<_>>());
        }
    }
}

#[test]
fn after_a_barrier_everybody_has_heard_of_everybody() {
    for world_size in 1..=17 {
        let mut schedules = all(world_size, |rank| dissemination(rank, world_size));
        // A barrier carries no data. Combining shows which ranks have received from which.
        for step in schedules.iter_mut().flat_map(|one| &mut one.steps) {
            step.receive = step.receive.map(|(message, _)| (message, Arrival::Combine));
        }
        for parts in play(&schedules, 1, |_, _| true) {
            assert!(parts[0].iter().all(|heard| *heard > 0));
        }
    }
}

#[test]
fn the_largest_world_does_not_overflow() {
    let most = u32::MAX;
    for rank in [0, 1, most / 2, most - 1] {
        assert_eq!(dissemination(rank, most).steps.len(), 32);
        assert_eq!(binomial_tree(rank, most, most - 1).steps.len(), 32);
        assert_eq!(bruck(rank, most).steps.len(), 32);
        assert_eq!(recursive_doubling(rank, most).steps.len(), 33);
    }
}
