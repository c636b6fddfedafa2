//! Tests of reductions of buffers that ranks of one host read from each other.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rdzv_collective::{CollectiveError, ProcessGroup, ReduceOp};
use support::{LONG, not_shared, options, run, run_each, run_with};

/// Length in elements, larger than the shared buffers, and not divisible.
const MANY: usize = 700_001;

/// Returns the value of a rank at an index in an operation; the sums fit.
fn value(operation: usize, rank: u32, index: usize) -> u32 {
    let mixed = (index + operation * 7919).wrapping_mul(2_654_435_761) >> 7;
    (mixed % 1_000_003) as u32 + rank * 17
}

fn values(operation: usize, rank: u32, len: usize) -> Vec<u32> {
    (0..len)
        .map(|index| value(operation, rank, index))
        .collect()
}

fn sums(operation: usize, world_size: u32, len: usize) -> Vec<u32> {
    let sum = |index| {
        (0..world_size)
            .map(|rank| value(operation, rank, index))
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

/// Performs one operation, and compares the result.
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

    /// Checks that operations do not disturb each other in the shared buffers.
    ///
    /// No operation reads values that another one left, and none overwrites values too early.
    #[test]
    fn operations_of_all_kinds_and_lengths_follow_one_another(
        world_size in 2..=5_u32,
        operations in prop::collection::vec(
            (kinds(), prop_oneof![1..200_usize, 4_000..200_000_usize, 200_000..600_000_usize]),
            1..8,
        ),
        // The delay of a rank at each operation, in microseconds.
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
    // Two ranks share memory and two do not, so there is every kind of pair.
    let mixed = |rank: u32| match rank % 2 {
        0 => options(LONG),
        _ => not_shared(),
    };
    run_each(4, mixed, |mut group| {
        for (number, len) in [MANY, 5_000, MANY].into_iter().enumerate() {
            perform(&mut group, Kind::AllReduce, number, len);
            perform(&mut group, Kind::Reduce(1), number, len);
            perform(&mut group, Kind::ReduceScatter, number, len);
        }
    });
    run_with(3, &not_shared(), |mut group| {
        perform(&mut group, Kind::AllReduce, 1, MANY);
    });
}

#[test]
fn more_ranks_than_slots_reduce_as_well() {
    for world_size in [17, 16] {
        run(world_size, LONG, |mut group| {
            perform(&mut group, Kind::AllReduce, 0, 20_000);
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_by_all_others() {
    const SHORT: Duration = Duration::from_secs(4);
    for met in [false, true] {
        let given_up = Barrier::new(4);
        let errors = run(4, LONG, |mut group| {
            if met {
                perform(&mut group, Kind::AllReduce, 0, MANY);
            }
            if group.rank() == 2 {
                // Rank 2 stays a member, but does not participate until the others have failed.
                given_up.wait();
                return None;
            }
            group.set_timeout(SHORT);
            let started = Instant::now();
            let mut values = vec![1_u32; MANY];
            let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
            assert!(started.elapsed() < LONG / 4);
            given_up.wait();
            Some(error)
        });
        assert_eq!(errors.iter().flatten().count(), 3);
        for error in errors.into_iter().flatten() {
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
