//! Tests of the destination of values.
//!
//! They cover gather, scatter, all-to-all, reduce-scatter, send and receive, and objects.

use std::collections::BTreeMap;

use crate::support::{LONG, far, not_shared, options, run, run_each, run_with};
use rdzv_collective::{CollectiveError, GroupOptions, ReduceOp};

/// Zero, one, few, above the change of algorithm, and more than one message.
const SIZES: [usize; 5] = [0, 1, 1001, 20_000, 150_001];

/// Returns the values of one rank.
fn of(rank: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| rank << 24 | index).collect()
}

fn of_all(world_size: u32, len: usize) -> Vec<u32> {
    (0..world_size).flat_map(|rank| of(rank, len)).collect()
}

#[test]
fn all_gather_brings_everything_to_everybody() {
    for world_size in 1..=7 {
        run(world_size, LONG, |mut group| {
            for len in SIZES {
                let mut all = vec![0; len * world_size as usize];
                group.all_gather(&of(group.rank(), len), &mut all).unwrap();
                assert!(all == of_all(world_size, len), "{world_size} ranks, {len}");
            }
        });
    }
}

#[test]
fn every_root_gathers_and_scatters() {
    for world_size in 1..=5 {
        run(world_size, LONG, |mut group| {
            let rank = group.rank();
            for (root, len) in
                (0..world_size).zip(SIZES.into_iter().cycle().skip(world_size as usize))
            {
                let gathered = group.gather(&of(rank, len), root).unwrap();
                let expected = (rank == root).then(|| of_all(world_size, len));
                let what = format!("{world_size} ranks, root {root}, {len}");
                assert!(gathered == expected, "{what}");
                let (all, mut own) = (gathered.unwrap_or_default(), vec![0; len]);
                group.scatter(&all, &mut own, root).unwrap();
                assert!(own == of(rank, len), "{what}");
            }
        });
    }
}

#[test]
fn ranks_may_have_different_lengths() {
    for world_size in 1..=6 {
        run(world_size, LONG, |mut group| {
            // The first rank has no values, and the last more than one message.
            let lens = |rank: u32| (rank as usize).pow(2) * 4_000;
            let all = group
                .all_gather_unequal(&of(group.rank(), lens(group.rank())))
                .unwrap();
            let expected: Vec<Vec<u32>> =
                (0..world_size).map(|rank| of(rank, lens(rank))).collect();
            assert!(all == expected, "{world_size} ranks");
        });
    }
}

#[test]
fn all_to_all_hands_every_part_to_its_rank() {
    for world_size in 1..=6 {
        run(world_size, LONG, |mut group| {
            let rank = group.rank();
            for len in SIZES {
                let part = |from: u32, to: u32| vec![from * 100 + to; len];
                let source: Vec<u32> = (0..world_size).flat_map(|to| part(rank, to)).collect();
                let mut target = vec![0; source.len()];
                group.all_to_all(&source, &mut target).unwrap();
                let expected: Vec<u32> =
                    (0..world_size).flat_map(|from| part(from, rank)).collect();
                assert!(target == expected, "{world_size} ranks, {len}");
            }
            let part = |from: u32, to: u32| vec![from * 100 + to; (from * 50_000 + to) as usize];
            let lists: Vec<Vec<u32>> = (0..world_size).map(|to| part(rank, to)).collect();
            let expected: Vec<Vec<u32>> = (0..world_size).map(|from| part(from, rank)).collect();
            assert!(group.all_to_all_unequal(&lists).unwrap() == expected);
        });
    }
}

#[test]
fn a_reduction_ends_in_parts_or_at_the_root() {
    for world_size in 1..=6 {
        let sum: u32 = (1..=world_size).sum();
        run(world_size, LONG, |mut group| {
            let rank = group.rank();
            for len in SIZES {
                let values: Vec<f64> = (0..len)
                    .map(|index| f64::from(rank + 1) * index as f64)
                    .collect();
                let expected: Vec<f64> = (0..len)
                    .map(|index| f64::from(sum) * index as f64)
                    .collect();
                let mut scattered = values.clone();
                let own = group.reduce_scatter(&mut scattered, ReduceOp::Sum).unwrap();
                assert!(
                    scattered[own.clone()] == expected[own],
                    "{world_size} ranks, {len}"
                );
                let root = len as u32 % world_size;
                let mut reduced = values;
                group.reduce(&mut reduced, ReduceOp::Average, root).unwrap();
                if rank == root {
                    let by = f64::from(world_size);
                    let pairs = reduced.iter().zip(&expected);
                    assert!(pairs.clone().all(|(found, sum)| *found == sum / by));
                }
            }
        });
    }
}

#[test]
fn parts_of_a_reduction_cover_everything_once() {
    let mut owned = run(4, LONG, |mut group| {
        group
            .reduce_scatter(&mut [1_i32; 10], ReduceOp::Sum)
            .unwrap()
    });
    owned.sort_by_key(|range| range.start);
    assert_eq!(owned, [0..3, 3..6, 6..8, 8..10]);
}

#[test]
fn ranks_that_are_not_near_use_tcp() {
    for world_size in [2, 3] {
        run_with(world_size, &far(), |mut group| {
            for len in SIZES {
                let mut all = vec![0; len * world_size as usize];
                group.all_gather(&of(group.rank(), len), &mut all).unwrap();
                assert!(all == of_all(world_size, len));
                group.all_reduce(&mut all, ReduceOp::Max).unwrap();
                assert!(all == of_all(world_size, len));
            }
        });
    }
}

/// Checks that every connection works if only some ranks use rings.
#[test]
fn ranks_of_one_host_need_not_agree_on_shared_memory() {
    let mixed = |rank: u32| match rank {
        1 => not_shared(),
        _ => options(LONG),
    };
    run_each(3, mixed, |mut group| {
        for len in [0, 1, 100, 1 << 19] {
            let mut all = vec![0; len * 3];
            group.all_gather(&of(group.rank(), len), &mut all).unwrap();
            assert!(all == of_all(3, len));
        }
    });
}

#[test]
fn values_are_sent_between_collective_calls_of_others() {
    run(3, LONG, |mut group| {
        for (round, len) in SIZES.into_iter().enumerate() {
            match group.rank() {
                0 => group.send(&of(round as u32, len), 2, 0).unwrap(),
                2 => {
                    let mut values = vec![0; len];
                    assert_eq!(group.receive(&mut values, Some(0), 0).unwrap(), 0);
                    assert!(values == of(round as u32, len));
                }
                // This rank does not participate.
                _ => {}
            }
        }
        group.barrier().unwrap();
        for argument in [
            group.send(&[1_u8], 3, 0),
            group.send(&[1_u8], group.rank(), 0),
            group.receive(&mut [1_u8], Some(group.rank()), 0).map(drop),
        ] {
            assert!(matches!(argument, Err(CollectiveError::Argument(_))));
        }
        group.barrier().unwrap();
    });
}

#[test]
fn objects_of_any_length_go_to_all() {
    type Object = BTreeMap<String, Vec<Option<i64>>>;
    let object = |rank: u32| -> Object {
        let list = (0..i64::from(rank * 10_000)).map(|one| (one % 3 > 0).then_some(one));
        BTreeMap::from([(format!("rank {rank}"), list.collect())])
    };
    run(4, LONG, |mut group| {
        let rank = group.rank();
        let expected: Vec<Object> = (0..4).map(object).collect();
        assert!(group.all_gather_objects(&object(rank)).unwrap() == expected);
        assert!(group.broadcast_object(&object(rank), 3).unwrap() == expected[3]);
    });
}

#[test]
fn an_object_of_another_type_is_named_and_leaves_the_group_good() {
    run(2, LONG, |mut group| {
        if group.rank() == 0 {
            let read = group.all_gather_objects(&String::from("text"));
            let error = read.unwrap_err().to_string();
            let expected = "from rank 1 is not an object of this type";
            assert!(error.contains(expected), "{error}");
        } else {
            // This rank may read the bytes of the other one as an object of its type.
            let _ = group.all_gather_objects(&7_u8);
        }
        group.barrier().unwrap();
    });
}

#[test]
fn nobody_is_made_to_reserve_more_than_the_limit() {
    let options = GroupOptions {
        largest: 100,
        ..options(LONG)
    };
    let results = run_with(3, &options, |mut group| {
        let own = vec![0_u16; 20 * group.rank() as usize];
        group.all_gather_unequal(&own).unwrap_err().to_string()
    });
    let said = |text: &str| results.iter().filter(|error| error.contains(text)).count();
    let first = said("the 40 x u16 of rank 2");
    // Other ranks may receive the abort before they detect the error.
    let others = said("stopped, because rank 2 caused an error");
    assert!(first >= 1 && first + others == 3, "{results:?}");
}
