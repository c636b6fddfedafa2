//! Tests of blocking calls that another thread ends.

#![allow(clippy::unwrap_used, reason = "tests")]

mod support;

use std::fs;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use rdzv_collective::{AbortCause, CollectiveError, ProcessGroup, ReduceOp};
use support::{LONG, run};

type Blocking = fn(&mut ProcessGroup) -> Result<(), CollectiveError>;

/// Calls on rank 0 that wait for rank 1.
const CALLS: [(&str, Blocking); 15] = [
    ("barrier", ProcessGroup::barrier),
    ("monitored_barrier", |group| group.monitored_barrier(LONG)),
    ("broadcast", |group| group.broadcast(&mut [0_u8], 1)),
    ("scatter", |group| group.scatter(&[], &mut [0_u8], 1)),
    ("gather", |group| group.gather(&[0_u8], 0).map(drop)),
    ("all_gather", |group| group.all_gather(&[0_u8], &mut [0; 2])),
    ("all_gather_unequal", |group| {
        group.all_gather_unequal(&[0_u8]).map(drop)
    }),
    ("all_gather_objects", |group| {
        group.all_gather_objects(&0_u8).map(drop)
    }),
    ("all_to_all", |group| {
        group.all_to_all(&[0_u8; 2], &mut [0; 2])
    }),
    ("all_reduce", |group| {
        group.all_reduce(&mut [0_u8], ReduceOp::Sum)
    }),
    ("large all_reduce", |group| {
        group.all_reduce(&mut vec![0_u8; 100_000], ReduceOp::Sum)
    }),
    ("reduce", |group| {
        group.reduce(&mut [0_u8; 2], ReduceOp::Sum, 0)
    }),
    ("receive", |group| {
        group.receive(&mut [0_u8], Some(1), 0).map(drop)
    }),
    ("receive from any", |group| {
        group.receive(&mut [0_u8], None, 0).map(drop)
    }),
    ("send", |group| group.send(&[0_u8], 1, 0)),
];

/// Waits until a thread of this process sleeps.
fn await_sleep(thread: i32) {
    let started = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/self/task/{thread}/stat")).unwrap();
        let (_, state) = stat.rsplit_once(") ").unwrap();
        if state.starts_with('S') {
            return;
        }
        assert!(started.elapsed() < LONG, "no sleep: {stat}");
        thread::yield_now();
    }
}

#[test]
fn every_blocking_call_ends_and_the_peer_hears_why() {
    for (name, call) in CALLS {
        let ended = Barrier::new(2);
        let errors = run(2, LONG, |mut group| {
            if group.rank() == 1 {
                ended.wait();
                return group.barrier().unwrap_err();
            }
            let (breaker, waiting) = (group.breaker(), rustix::thread::gettid());
            let started = Instant::now();
            let error = thread::scope(|scope| {
                scope.spawn(move || {
                    await_sleep(waiting.as_raw_nonzero().get());
                    breaker();
                });
                call(&mut group).unwrap_err()
            });
            assert!(started.elapsed() < LONG / 4, "{name}");
            ended.wait();
            let again = group.barrier().unwrap_err();
            assert!(matches!(again, CollectiveError::Broken { .. }), "{again}");
            error
        });
        let text = errors[0].to_string();
        let is_interrupted = matches!(errors[0], CollectiveError::Interrupted { rank: 0, .. });
        let reason = " as operation 1: rank 0 was interrupted";
        assert!(is_interrupted && text.contains(reason), "{name}: {text}");
        match &errors[1] {
            CollectiveError::Aborted {
                suspect: 0, cause, ..
            } => {
                assert_eq!(*cause, AbortCause::Interrupted, "{name}");
            }
            // The connection may have ended before it was used.
            CollectiveError::Lost { peer: 0, .. } => {}
            other => panic!("{name}: {other}"),
        }
    }
}

#[test]
fn an_interrupted_group_is_rebuilt() {
    let store = support::store();
    thread::scope(|scope| {
        for rank in 0..2 {
            let store = &store;
            scope.spawn(move || {
                let group = support::join(store, rank, 2, LONG).unwrap();
                group.breaker()();
                let mut group = group.rebuild(store).unwrap();
                group.barrier().unwrap();
            });
        }
    });
}
