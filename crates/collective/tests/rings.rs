//! Ranks of one host exchange data in shared memory. One test, since it looks at the whole process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;

use rdzv_collective::{GroupOptions, Reduce};
use support::{LONG, options, run_with};

/// How many rings this process has mapped.
fn rings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:rdzv-rings"))
        .count()
}

fn rings_of(options: &GroupOptions) -> Vec<usize> {
    run_with(3, options, |mut group| {
        let mut values = vec![group.rank(); 1 << 20];
        group.all_reduce(&mut values, Reduce::Sum).unwrap();
        assert!(values.iter().all(|value| *value == 3));
        group.barrier().unwrap();
        let rings = rings();
        // Nobody leaves while somebody counts.
        group.barrier().unwrap();
        rings
    })
}

#[test]
fn data_of_near_ranks_go_through_shared_memory_unless_that_is_turned_off() {
    // Each of three ranks has at least one connection to another, and both of its ends are here.
    let shared = options(LONG);
    assert!(rings_of(&shared).iter().all(|count| *count >= 6));
    assert_eq!(rings(), 0, "rings stay behind");
    let not_shared = GroupOptions {
        shared: false,
        ..options(LONG)
    };
    assert_eq!(rings_of(&not_shared), [0, 0, 0]);
    let far = GroupOptions {
        near: false,
        ..options(LONG)
    };
    assert_eq!(rings_of(&far), [0, 0, 0]);
}
