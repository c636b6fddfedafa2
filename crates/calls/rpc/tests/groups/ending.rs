//! Tests of the end of static groups.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rdzv_rpc::RpcErrorKind;

use super::support::{LONG, form_all, formed, shut_down, stores, worker};

fn trio() -> Vec<rdzv_rpc_proto::directory::Member> {
    ["a", "b", "c"]
        .into_iter()
        .zip(0..)
        .map(|(name, id)| worker(name, id))
        .collect()
}

#[test]
fn nobody_leaves_before_the_last_has_drained() {
    for store in stores() {
        let groups = formed(form_all(&store, trio(), LONG));
        let (left, all) = mpsc::channel();
        thread::scope(|scope| {
            for group in &groups[1..] {
                let left = left.clone();
                scope.spawn(move || {
                    group.shutdown_barrier(LONG).unwrap();
                    left.send(()).unwrap();
                });
            }
            // They still wait after a time in which an early end would show.
            let early = all.recv_timeout(Duration::from_millis(300));
            assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
            groups[0].shutdown_barrier(LONG).unwrap();
        });
        assert_eq!(all.try_iter().count(), 2);
    }
}

#[test]
fn a_group_leaves_nothing_but_its_number_in_the_store() {
    for store in stores() {
        let mut sizes = Vec::new();
        for _ in 0..3 {
            let groups = formed(form_all(&store, trio(), LONG));
            shut_down(&groups);
            sizes.push(store.num_keys().unwrap());
        }
        assert_eq!(sizes[0], sizes[2], "{sizes:?}");
    }
}

#[test]
fn a_worker_that_hangs_is_named_by_all_at_the_deadline() {
    for store in stores() {
        let groups = formed(form_all(&store, trio(), LONG));
        let deadline = Duration::from_secs(1);
        let ended = |rank: usize, deadline| {
            let started = Instant::now();
            let error = groups[rank].shutdown_barrier(deadline).unwrap_err();
            (error, started.elapsed())
        };
        let ended = &ended;
        let verdicts: Vec<_> = thread::scope(|scope| {
            // Two of three workers arrive. The one with the longer deadline gets the verdict of the
            // other.
            let calls = [(0, deadline), (2, LONG)]
                .map(|(rank, deadline)| scope.spawn(move || ended(rank, deadline)));
            calls.map(|call| call.join().unwrap()).into()
        });
        for (error, elapsed) in &verdicts {
            assert_eq!(error.kind, RpcErrorKind::Deadline);
            assert_eq!(error.worker.as_ref().unwrap().name.as_str(), "b");
            assert!(
                error.message.contains("b (rank 1) did not drain"),
                "{error}"
            );
            assert!((deadline..LONG / 3).contains(elapsed), "{elapsed:?}");
        }
        assert_eq!(verdicts[0].0, verdicts[1].0);
    }
}

#[test]
fn who_comes_after_the_verdict_is_notified_the_same() {
    for store in stores() {
        let groups = formed(form_all(&store, trio(), LONG));
        let verdict = groups[0]
            .shutdown_barrier(Duration::from_millis(300))
            .unwrap_err();
        let late = groups[1].shutdown_barrier(LONG).unwrap_err();
        assert_eq!(verdict, late);
        assert!(
            late.message
                .contains("b (rank 1), c (rank 2) did not drain"),
            "{late}"
        );
        // The store serves the next group.
        formed(form_all(&store, trio(), LONG));
    }
}
