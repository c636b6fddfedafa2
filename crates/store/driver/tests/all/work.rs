//! Tests that the work of one operation does not grow with registered waits.

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_store_proto::meter::Meter;
use rdzv_store_proto::waiters::{WaitKind, Waiters};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processor time of this thread, without that of other processes.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Returns the time of some writes of a key with this many barriers.
/// None of the writes completes a barrier.
fn writes(barriers: u32) -> Duration {
    let (mut waiters, meter) = (Waiters::default(), Meter::default());
    for number in 0..barriers {
        let key = std::iter::once(&b"/b"[..]);
        waiters.register(ConnId(number), WaitKind::Barrier(1 << 40), key, &meter);
    }
    let mut woken = Vec::new();
    let before = processor_time();
    for number in 0..100 {
        waiters.wake(b"/b", Some(number), &mut woken);
    }
    let time = processor_time() - before;
    assert_eq!((woken.len(), waiters.len()), (0, barriers as usize));
    time
}

#[test]
fn a_write_takes_as_long_with_many_barriers_that_stay_as_with_one() {
    let (one, many) = (writes(1), writes(20_000));
    // A check of each barrier would take thousands of times as long.
    assert!(
        many < 20 * one + Duration::from_millis(50),
        "{one:?}, {many:?}"
    );
}
