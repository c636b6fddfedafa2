//! Tests of asynchronous operations: their order, and their end at a failure.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{LONG, run};
use rdzv_collective::{CollectiveError, GroupQueue, ReduceOp};

#[test]
fn operations_run_in_the_order_of_the_calls_and_so_do_synchronous_ones() {
    run(3, LONG, |group| {
        let (rank, mut queue) = (group.rank(), GroupQueue::new(group));
        // The order of calls is the same on all ranks, and the caller waits for no result in
        // between.
        let works: Vec<_> = (0..20_i64)
            .map(|number| {
                let len = if number % 3 == 0 { 10_000 } else { 5 };
                let values = vec![number + i64::from(rank); len];
                queue.all_reduce_async(values, ReduceOp::Sum).unwrap()
            })
            .collect();
        let gathered = queue
            .submit(|group| group.all_gather_objects(&group.rank()))
            .unwrap();
        queue.group().unwrap().barrier().unwrap();
        let mut values = [1_i32];
        let group = queue.group().unwrap();
        group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
        assert_eq!(values, [3]);
        let later = queue.submit(|group| group.barrier()).unwrap();
        for (number, work) in (0..).zip(works) {
            assert!(work.is_done());
            let values = work.wait().unwrap();
            assert!(values.iter().all(|value| *value == 3 * number + 3));
        }
        assert_eq!(gathered.wait().unwrap(), [0, 1, 2]);
        later.wait().unwrap();
        queue.into_group().unwrap().barrier().unwrap();
    });
}

#[test]
fn a_call_returns_before_its_operation_ends() {
    let submitted = Barrier::new(2);
    run(2, LONG, |group| {
        let (rank, mut queue) = (group.rank(), GroupQueue::new(group));
        if rank == 1 {
            submitted.wait();
            return queue.group().unwrap().barrier().unwrap();
        }
        let work = queue.submit(|group| group.barrier()).unwrap();
        assert!(!work.is_done());
        assert!(!work.wait_timeout(Duration::from_millis(20)));
        submitted.wait();
        work.wait().unwrap();
    });
}

#[test]
fn a_peer_that_ends_fails_all_queued_work() {
    let started = Instant::now();
    run(3, LONG, |group| {
        if group.rank() == 2 {
            return;
        }
        let mut queue = GroupQueue::new(group);
        let mut works = (0..4)
            .map(|_| queue.all_reduce_async(vec![1_i32], ReduceOp::Sum).unwrap())
            .collect::<Vec<_>>()
            .into_iter();
        let first = works.next().unwrap().wait().unwrap_err();
        assert!(
            matches!(
                first,
                CollectiveError::Lost { .. } | CollectiveError::Aborted { .. }
            ),
            "{first}"
        );
        for work in works {
            let error = work.wait().unwrap_err();
            assert!(matches!(error, CollectiveError::Broken { .. }), "{error}");
        }
    });
    assert!(started.elapsed() < LONG / 4);
}

#[test]
fn queued_work_is_interrupted_also_by_dropping_the_queue() {
    for by_dropping in [false, true] {
        let ended = Barrier::new(2);
        run(2, LONG, |group| {
            if group.rank() == 1 {
                // This rank stays a member until the other rank has failed.
                ended.wait();
                return;
            }
            let mut queue = GroupQueue::new(group);
            let first = queue.submit(|group| group.barrier()).unwrap();
            let second = queue.submit(|group| group.barrier()).unwrap();
            let breaker = queue.breaker();
            if by_dropping {
                drop(queue);
            } else {
                breaker();
            }
            let error = first.wait().unwrap_err();
            assert!(
                matches!(error, CollectiveError::Interrupted { .. }),
                "{error}"
            );
            let error = second.wait().unwrap_err();
            assert!(matches!(error, CollectiveError::Broken { .. }), "{error}");
            ended.wait();
        });
    }
}

#[test]
fn an_idle_queue_has_no_thread_and_calls_run_where_they_are_made() {
    run(1, LONG, |group| {
        let mut queue = GroupQueue::new(group);
        queue.group().unwrap().barrier().unwrap();
        let (sender, ran_on) = mpsc::channel();
        let work = queue
            .submit(move |_| {
                sender.send(thread::current().id()).unwrap();
                Ok(())
            })
            .unwrap();
        work.wait().unwrap();
        assert_ne!(ran_on.recv().unwrap(), thread::current().id());
        queue.group().unwrap().barrier().unwrap();
    });
}

#[test]
fn an_operation_that_panics_is_an_error_of_its_work() {
    run(1, LONG, |group| {
        let mut queue = GroupQueue::new(group);
        let work = queue
            .submit(|_| -> Result<(), _> { panic!("as the test wants it") })
            .unwrap();
        let error = work.wait().unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
        assert!(queue.group().is_err());
    });
}
