//! The work of one operation does not grow with what others have registered.

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_store_proto::meter::Meter;
use rdzv_store_proto::waiters::{WaitKind, Waiters};
use rustix::time::{ClockId, clock_gettime};

/// Processor time of this thread, which other processes do not take.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// Time of some writes of a key on which this many barriers wait that none of the writes completes.
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
    // Looking at each of them would take thousands of times as long.
    assert!(
        many < 20 * one + Duration::from_millis(50),
        "{one:?}, {many:?}"
    );
}
