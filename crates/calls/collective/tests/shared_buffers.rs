//! Reductions of buffers that ranks of one host read from one another's memory.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rdzv_collective::{CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
use support::{LONG, join, options, run, run_with, store};

/// Longer than what shared buffers hold at once, and nothing divides it.
const MANY: usize = 700_001;

/// The value of a rank at an index in an operation; sums of them fit.
fn value(operation: usize, rank: u32, place: usize) -> u32 {
    let mixed = (place + operation * 7919).wrapping_mul(2_654_435_761) >> 7;
    (mixed % 1_000_003) as u32 + rank * 17
}

fn values(operation: usize, rank: u32, len: usize) -> Vec<u32> {
    (0..len)
        .map(|place| value(operation, rank, place))
        .collect()
}

fn sums(operation: usize, world_size: u32, len: usize) -> Vec<u32> {
    let sum = |place| {
        (0..world_size)
            .map(|rank| value(operation, rank, place))
            .sum()
    };
    (0..len).map(sum).collect()
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    AllReduce,
    ReduceScatter,
    Reduce(u32),
    Broadcast(u32),
}

/// Does one operation and compares what it gives.
fn perform(group: &mut ProcessGroup, kind: Kind, number: usize, len: usize) {
    let (rank, world_size) = (group.rank(), group.world_size());
    let mut values = values(number, rank, len);
    let expected = || sums(number, world_size, len);
    match kind {
        Kind::AllReduce => {
            group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            assert!(values == expected(), "operation {number}");
        }
        Kind::ReduceScatter => {
            let own = group.reduce_scatter(&mut values, ReduceOp::Sum).unwrap();
            assert!(values[own.clone()] == expected()[own], "operation {number}");
        }
        Kind::Reduce(root) => {
            group
                .reduce(&mut values, ReduceOp::Sum, root % world_size)
                .unwrap();
            if rank == root % world_size {
                assert!(values == expected(), "operation {number}");
            }
        }
        Kind::Broadcast(root) => {
            let root = root % world_size;
            group.broadcast(&mut values, root).unwrap();
            assert!(
                values == self::values(number, root, len),
                "operation {number}"
            );
        }
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::AllReduce),
        2 => Just(Kind::ReduceScatter),
        2 => any::<u32>().prop_map(Kind::Reduce),
        1 => any::<u32>().prop_map(Kind::Broadcast),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Values that one operation leaves in a shared buffer are never read, and never overwritten too early, by another.
    #[test]
    fn operations_of_all_kinds_and_lengths_follow_one_another(
        world_size in 2..=5_u32,
        operations in prop::collection::vec(
            (kinds(), prop_oneof![1..200_usize, 4_000..200_000_usize, 200_000..600_000_usize]),
            1..8,
        ),
        // Which rank is how late to each operation, in microseconds.
        late in prop::collection::vec((0..5_u32, 0..3_000_u64), 8),
    ) {
        run(world_size, LONG, |mut group| {
            for (number, (kind, len)) in operations.iter().enumerate() {
                let (rank, pause) = late[number];
                if rank == group.rank() {
                    thread::sleep(Duration::from_micros(pause));
                }
                perform(&mut group, *kind, number, *len);
            }
        });
    }
}

#[test]
fn ranks_that_share_no_memory_get_their_values_in_messages() {
    let store = store();
    thread::scope(|scope| {
        for rank in 0..4 {
            let options = GroupOptions {
                // Two do, two do not: every kind of pair.
                shared: rank % 2 == 0,
                ..options(LONG)
            };
            let store = &store;
            scope.spawn(move || {
                let mut group = ProcessGroup::with_options(store, rank, 4, &options).unwrap();
                for (number, len) in [MANY, 5_000, MANY].into_iter().enumerate() {
                    perform(&mut group, Kind::AllReduce, number, len);
                    perform(&mut group, Kind::Reduce(1), number, len);
                    perform(&mut group, Kind::ReduceScatter, number, len);
                }
            });
        }
    });
    let nobody = GroupOptions {
        shared: false,
        ..options(LONG)
    };
    run_with(3, &nobody, |mut group| {
        perform(&mut group, Kind::AllReduce, 1, MANY);
    });
}

#[test]
fn values_of_one_byte_are_reduced_like_others() {
    run(3, LONG, |mut group| {
        let rank = group.rank() as u8;
        let mut values: Vec<u8> = (0..MANY).map(|place| (place as u8) ^ rank).collect();
        group.all_reduce(&mut values, ReduceOp::BitXor).unwrap();
        let expected = (0..MANY).map(|place| (place as u8) ^ 3);
        assert!(values.iter().copied().eq(expected));
    });
}

#[test]
fn more_ranks_than_slots_reduce_as_well() {
    run(17, LONG, |mut group| {
        perform(&mut group, Kind::AllReduce, 0, 20_000);
    });
    run(16, LONG, |mut group| {
        perform(&mut group, Kind::AllReduce, 0, 20_000);
    });
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_others() {
    const SHORT: Duration = Duration::from_secs(4);
    for met in [false, true] {
        let store = store();
        let errors = thread::scope(|scope| {
            let ranks: Vec<_> = (0..4)
                .map(|rank| {
                    let store = &store;
                    scope.spawn(move || {
                        let mut group = join(store, rank, 4, LONG).unwrap();
                        if met {
                            perform(&mut group, Kind::AllReduce, 0, MANY);
                        }
                        if rank == 2 {
                            // It is there, and does something else until the others have given up.
                            let keys = ["given-up/0", "given-up/1", "given-up/3"];
                            rdzv_store::Store::wait(store, &keys, Some(LONG)).unwrap();
                            return None;
                        }
                        group.set_timeout(SHORT);
                        let started = Instant::now();
                        let error = group
                            .all_reduce(&mut vec![1_u32; MANY], ReduceOp::Sum)
                            .unwrap_err();
                        assert!(started.elapsed() < LONG / 4);
                        let key = format!("given-up/{rank}");
                        rdzv_store::Store::set(store, &key, b"1").unwrap();
                        Some(error)
                    })
                })
                .collect();
            let ended = ranks.into_iter().filter_map(|rank| rank.join().unwrap());
            ended.collect::<Vec<_>>()
        });
        assert_eq!(errors.len(), 3);
        for error in errors {
            let text = error.to_string();
            assert!(text.contains("rank 2"), "met: {met}: {text}");
            match error {
                CollectiveError::Timeout { peer: 2, .. }
                | CollectiveError::Aborted { suspect: 2, .. } => {}
                other => panic!("met: {met}: {other}"),
            }
        }
    }
}

#[test]
fn different_lengths_are_named_on_both_sides() {
    let errors = run(2, LONG, |mut group| {
        let len = 10_000 + group.rank() as usize;
        group
            .all_reduce(&mut vec![1_u32; len], ReduceOp::Sum)
            .unwrap_err()
            .to_string()
    });
    assert!(
        errors
            .iter()
            .any(|error| error.contains("10000 x u32") && error.contains("10001 x u32")),
        "{errors:?}"
    );
}
