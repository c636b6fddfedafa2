//! Results of the operations, for many sizes of worlds and buffers.

use crate::support::{LONG, run};
use rdzv_collective::{Element, ProcessGroup, ReduceOp, bf16, f16};

/// Nothing, one, odd, at and above the change of algorithm, and more than one message.
const SIZES: [usize; 7] = [0, 1, 3, 1001, 4096, 4097, 70_001];

/// A value for an element of a rank; sums of them are exact in `f32`.
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
fn every_reduction_and_type() {
    fn check<T: Element + PartialEq>(make: impl Fn(u32) -> T + Sync, expected: [T; 5]) {
        for len in [5, 9000] {
            let results = run(3, LONG, |mut group| {
                [
                    ReduceOp::Sum,
                    ReduceOp::Average,
                    ReduceOp::Min,
                    ReduceOp::Max,
                    ReduceOp::Product,
                ]
                .map(|reduce| {
                    let mut values = vec![make(group.rank()); len];
                    group.all_reduce(&mut values, reduce).unwrap();
                    values
                })
            });
            for result in results {
                for (values, expected) in result.iter().zip(expected) {
                    assert_eq!(values.len(), len);
                    assert!(
                        values.iter().all(|value| *value == expected),
                        "{expected:?}"
                    );
                }
            }
        }
    }
    check(|rank| rank as u8 + 1, [6, 2, 1, 3, 6]);
    check(|rank| 1 - rank as i8, [0, 0, -1, 1, 0]);
    let product = 301_u16.wrapping_mul(601);
    check(|rank| 300 * rank as u16 + 1, [903, 301, 1, 601, product]);
    let product = (-300_i16).wrapping_mul(-301).wrapping_mul(-302);
    check(|rank| -300 - rank as i16, [-903, -301, -302, -300, product]);
    let million = 1_000_000_u32;
    let product = million.wrapping_mul(2 * million).wrapping_mul(3 * million);
    check(
        |rank| million * (rank + 1),
        [6 * million, 2 * million, million, 3 * million, product],
    );
    check(|rank| 10 - 7 * rank as i32, [9, 3, -4, 10, -120]);
    let high = 1_u64 << 62;
    let product = high.wrapping_mul(high + 1).wrapping_mul(high + 2);
    check(
        |rank| high + u64::from(rank),
        [high * 3 + 3, high + 1, high, high + 2, product],
    );
    check(
        |rank| (1 << 40) * i64::from(rank),
        [3 << 40, 1 << 40, 0, 2 << 40, 0],
    );
    check(|rank| rank as f32 - 0.5, [1.5, 0.5, -0.5, 1.5, -0.375]);
    let huge = 2_f64.powi(300);
    check(
        |rank| f64::from(rank) * huge,
        [3.0 * huge, huge, 0.0, 2.0 * huge, 0.0],
    );
    let half = f16::from_f32;
    check(
        |rank| half(rank as f32 - 0.5),
        [1.5, 0.5, -0.5, 1.5, -0.375].map(half),
    );
    let brain = bf16::from_f32;
    check(
        |rank| brain(rank as f32 - 0.5),
        [1.5, 0.5, -0.5, 1.5, -0.375].map(brain),
    );
}

#[test]
fn bits_are_combined_in_integers_only() {
    let results = run(3, LONG, |mut group| {
        let refused = group
            .all_reduce(&mut [1.0_f32], ReduceOp::BitOr)
            .unwrap_err();
        assert!(
            refused.to_string().contains("f32 has no such operator"),
            "{refused}"
        );
        [ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor].map(|reduce| {
            let mut values = [0b1000 | 1_u16 << group.rank()];
            group.all_reduce(&mut values, reduce).unwrap();
            values[0]
        })
    });
    assert_eq!(results, [[0b1000, 0b1111, 0b1111]; 3]);
}

#[test]
fn the_result_has_the_same_bits_on_all_ranks_and_in_every_run() {
    // The sum of these depends on the order in which they are added.
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
    // The root of a broadcast is done first and is gone before the others look.
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
