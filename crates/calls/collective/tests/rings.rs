//! Test of shared memory between ranks of one host.
//!
//! It is a single test, because it inspects the whole process.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;

use rdzv_collective::{GroupOptions, ReduceOp};
use support::{LONG, far, not_shared, options, run_with};

/// Returns the number of rings that this process has mapped.
fn rings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter(|line| line.contains("memfd:rdzv-rings"))
        .count()
}

/// Returns the resident KiB of all shared buffers that this process maps.
///
/// These are the buffers of this process, and those of other ranks that it has read.
fn shared_buffers() -> u64 {
    let maps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_board = false;
    let mut sum = 0;
    for line in maps.lines() {
        if line.contains('-') && !line.contains("kB") {
            is_board = line.contains("memfd:rdzv-board");
        } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_board) {
            sum += size.trim_end_matches("kB").trim().parse::<u64>().unwrap();
        }
    }
    sum
}

fn rings_of(options: &GroupOptions) -> Vec<usize> {
    run_with(3, options, |mut group| {
        group.all_reduce(&mut [1_u32], ReduceOp::Sum).unwrap();
        assert_eq!(shared_buffers(), 0, "nothing large was reduced yet");
        group.barrier().unwrap();
        let mut values = vec![group.rank(); 1 << 20];
        group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert!(values.iter().all(|value| *value == 3));
        group.barrier().unwrap();
        let rings = rings();
        assert_eq!(
            shared_buffers() > 0,
            rings > 0,
            "shared buffers are used if memory is shared"
        );
        // No rank leaves while another rank counts.
        group.barrier().unwrap();
        rings
    })
}

#[test]
fn data_of_near_ranks_go_through_shared_memory_unless_that_is_turned_off() {
    // Each of three ranks has at least one connection to another, and both ends are in this
    // process.
    let shared = options(LONG);
    assert!(rings_of(&shared).iter().all(|count| *count >= 6));
    assert_eq!(rings(), 0, "rings stay behind");
    assert_eq!(rings_of(&not_shared()), [0, 0, 0]);
    assert_eq!(rings_of(&far()), [0, 0, 0]);
}
