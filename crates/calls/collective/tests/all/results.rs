//! Tests of the results of operations, for many world sizes and buffer sizes.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{LONG, run};
use rdzv_collective::{Bool, CollectiveError, Element, ProcessGroup, ReduceOp, bf16, f16};

/// Zero, one, odd, around the change of algorithm, and more than one message.
const SIZES: [usize; 7] = [0, 1, 3, 1001, 4096, 4097, 70_001];

/// Returns a value for an element of a rank; sums are exact in `f32`.
fn value(rank: u32, index: usize) -> f32 {
    ((index % 1009) as f32 - 500.0) * (rank as f32 + 1.0)
}

fn values(group: &ProcessGroup, len: usize) -> Vec<f32> {
    (0..len).map(|index| value(group.rank(), index)).collect()
}

#[test]
fn all_reduce_sums_for_every_world_size_and_length() {
    for world_size in 1..=8 {
        let factor: f32 = (1..=world_size).sum::<u32>() as f32;
        let results = run(world_size, LONG, |mut group| {
            SIZES.map(|len| {
                let mut values = values(&group, len);
                group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
                values
            })
        });
        for (result, len) in results.iter().flat_map(|sizes| sizes.iter().zip(SIZES)) {
            let expected: Vec<f32> = (0..len).map(|index| value(0, index) * factor).collect();
            assert!(*result == expected, "{world_size} ranks, {len} elements");
        }
    }
}

#[test]
fn more_than_socket_buffers_hold_goes_around_without_a_deadlock() {
    const LEN: usize = 2_500_001;
    for world_size in [2, 3] {
        let results = run(world_size, LONG, |mut group| {
            let mut values = vec![1.0_f32; LEN];
            group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
            group.broadcast(&mut values, 1).unwrap();
            values
        });
        for result in results {
            assert!(result == vec![world_size as f32; LEN], "{world_size} ranks");
        }
    }
}

#[test]
fn broadcast_copies_from_every_root() {
    for world_size in 1..=8 {
        for (root, len) in (0..world_size).zip(SIZES.into_iter().cycle().skip(world_size as usize))
        {
            let results = run(world_size, LONG, |mut group| {
                let mut values = values(&group, len);
                group.broadcast(&mut values, root).unwrap();
                values
            });
            let expected: Vec<f32> = (0..len).map(|index| value(root, index)).collect();
            for result in results {
                assert!(
                    result == expected,
                    "{world_size} ranks, root {root}, {len} elements"
                );
            }
        }
    }
}

#[test]
fn the_result_has_the_same_bits_on_all_ranks_and_in_every_run() {
    // The sum of these values depends on the order of the additions.
    let sums = |len: usize| {
        run(7, LONG, |mut group| {
            let mut values: Vec<f32> = (0..len)
                .map(|index| 1.0 / (1.0 + (index * 7 + group.rank() as usize) as f32))
                .collect();
            if group.rank() % 2 == 1 {
                values[0] = f32::from_bits(0x7fc0_0000 + group.rank());
            }
            group.all_reduce(&mut values, ReduceOp::Average).unwrap();
            values.into_iter().map(f32::to_bits).collect::<Vec<u32>>()
        })
    };
    for len in [100, 100_000] {
        let (first, second) = (sums(len), sums(len));
        for result in first.iter().chain(&second) {
            assert!(*result == first[0], "{len} elements");
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_everybody_has_come() {
    use std::sync::atomic::{AtomicU32, Ordering};
    for world_size in 1..=8 {
        let come = AtomicU32::new(0);
        run(world_size, LONG, |mut group| {
            for round in 1..=20 {
                come.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(come.load(Ordering::SeqCst) >= round * world_size);
            }
        });
    }
}

#[test]
fn a_rank_that_has_what_it_needs_may_leave_early() {
    // The root of a broadcast finishes first, and may leave before the others check.
    for len in [1, 200_000] {
        for _ in 0..20 {
            let results = run(4, LONG, |mut group| {
                let mut values = vec![group.rank() as i32; len];
                group.broadcast(&mut values, 0).map(|()| values)
            });
            for result in results {
                assert!(result.unwrap().iter().all(|value| *value == 0));
            }
        }
    }
}

#[test]
fn operations_of_different_kinds_follow_one_another() {
    run(5, LONG, |mut group| {
        for round in 0..200_u32 {
            let mut sum = [i64::from(group.rank())];
            group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(sum, [10]);
            let root = round % 5;
            let mut bytes = [group.rank() as u8; 3];
            group.broadcast(&mut bytes, root).unwrap();
            assert_eq!(bytes, [root as u8; 3]);
            if round % 10 == 0 {
                group.barrier().unwrap();
            }
        }
    });
}

// Every element type with every operator, against a reference in plain numbers.

const OPERATORS: [ReduceOp; 9] = [
    ReduceOp::Sum,
    ReduceOp::Average,
    ReduceOp::Product,
    ReduceOp::Min,
    ReduceOp::Max,
    ReduceOp::BitAnd,
    ReduceOp::BitOr,
    ReduceOp::BitXor,
    ReduceOp::PremulSum(0.5),
];

/// A short buffer, and one for the algorithm for large buffers.
const LENGTHS: [usize; 2] = [13, 40_003];

/// Returns the value of a rank at an index.
///
/// Sums, products and quotients are exact in every type of float.
fn small(rank: u32, index: usize, below: usize) -> i64 {
    ((rank as usize * 7 + index * 3 + index / 11) % below) as i64
}

fn reference(op: ReduceOp, values: &[i64]) -> f64 {
    let all = values.iter().copied();
    let combined = match op {
        ReduceOp::Sum | ReduceOp::Average | ReduceOp::PremulSum(_) => all.sum(),
        ReduceOp::Product => all.product(),
        ReduceOp::Min => all.min().unwrap(),
        ReduceOp::Max => all.max().unwrap(),
        ReduceOp::BitAnd => all.fold(-1, |left, right| left & right),
        ReduceOp::BitOr => all.fold(0, |left, right| left | right),
        ReduceOp::BitXor => all.fold(0, |left, right| left ^ right),
    };
    match op {
        ReduceOp::Average => combined as f64 / values.len() as f64,
        ReduceOp::PremulSum(factor) => combined as f64 * factor,
        _ => combined as f64,
    }
}

fn check<T: Element + PartialEq>(group: &mut ProcessGroup, below: usize, of: impl Fn(f64) -> T) {
    let (rank, world_size) = (group.rank(), group.world_size());
    for op in OPERATORS {
        for len in LENGTHS {
            let mut values: Vec<T> = (0..len)
                .map(|index| of(small(rank, index, below) as f64))
                .collect();
            let result = group.all_reduce(&mut values, op);
            if !T::TYPE.allows(op) {
                let error = result.unwrap_err();
                let refused = format!("{} has no such operator", T::TYPE);
                assert!(matches!(error, CollectiveError::Argument(_)), "{error}");
                assert!(error.to_string().contains(&refused), "{error}");
                continue;
            }
            result.unwrap();
            for (index, found) in values.iter().enumerate() {
                let all: Vec<i64> = (0..world_size)
                    .map(|rank| small(rank, index, below))
                    .collect();
                let expected = of(reference(op, &all));
                assert!(
                    *found == expected,
                    "{op} of {all:?} as {}: {found:?}",
                    T::TYPE
                );
            }
        }
    }
}

#[test]
fn every_reduction_and_type() {
    for world_size in [2, 4] {
        run(world_size, LONG, |mut group| {
            check(&mut group, 5, |value| value as i64 as u8);
            check(&mut group, 5, |value| value as i64 as i8);
            check(&mut group, 5, |value| value as i64 as u16);
            check(&mut group, 5, |value| value as i64 as i16);
            check(&mut group, 5, |value| value as i64 as u32);
            check(&mut group, 5, |value| value as i64 as i32);
            check(&mut group, 5, |value| value as i64 as u64);
            check(&mut group, 5, |value| value as i64);
            check(&mut group, 5, f16::from_f64);
            check(&mut group, 5, bf16::from_f64);
            check(&mut group, 5, |value| value as f32);
            check(&mut group, 5, |value| value);
            check(&mut group, 2, |value| Bool::from(value != 0.0));
        });
    }
}

#[test]
fn ranks_may_scale_by_different_factors_and_get_the_same_bits() {
    let results = run(3, LONG, |mut group| {
        let factor = f64::from(group.rank()) + 0.1;
        let mut values = vec![0.3_f32; 20_000];
        group
            .all_reduce(&mut values, ReduceOp::PremulSum(factor))
            .unwrap();
        values
            .iter()
            .map(|value| value.to_bits())
            .collect::<Vec<_>>()
    });
    assert!(results.iter().all(|bits| *bits == results[0]));
    let sum = f32::from_bits(results[0][0]);
    assert!((sum - 0.3 * 3.3).abs() < 1e-5, "{sum}");
}

#[test]
fn other_operations_carry_truth_values() {
    run(2, LONG, |mut group| {
        let own = [Bool::from(group.rank() == 1); 3];
        let mut all = [Bool::default(); 6];
        group.all_gather(&own, &mut all).unwrap();
        assert_eq!(all.map(bool::from), [false, false, false, true, true, true]);
    });
}
