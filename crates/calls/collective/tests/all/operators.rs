//! Every element type with every operator, against a reference in plain numbers.

#![allow(clippy::unwrap_used, reason = "tests")]

use crate::support::{LONG, run};
use rdzv_collective::{Bool, CollectiveError, Element, ProcessGroup, ReduceOp, bf16, f16};

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

/// A few elements, and enough for the way of large buffers.
const LENGTHS: [usize; 2] = [13, 40_003];

/// The value of a rank at an index. Sums, products and quotients are exact in every type of float.
fn value(rank: u32, index: usize, below: usize) -> i64 {
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
                .map(|index| of(value(rank, index, below) as f64))
                .collect();
            let result = group.all_reduce(&mut values, op);
            if !T::TYPE.allows(op) {
                let error = result.unwrap_err();
                assert!(matches!(error, CollectiveError::Argument(_)), "{error}");
                continue;
            }
            result.unwrap();
            for (index, found) in values.iter().enumerate() {
                let all: Vec<i64> = (0..world_size)
                    .map(|rank| value(rank, index, below))
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
fn every_type_is_combined_by_every_operator_that_it_has() {
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
