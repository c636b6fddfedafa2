//! Tests of ranks that are missing, late, different or lost.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{LONG, join, options, run, store};
use rdzv_collective::{AbortCause, CollectiveError, GroupOptions, ProcessGroup, ReduceOp};
use rdzv_store::Store;

const SHORT: Duration = Duration::from_millis(300);

#[test]
fn ranks_that_do_not_join_are_named() {
    let error = join(&store(), 0, 4, SHORT).unwrap_err();
    assert!(
        matches!(&error, CollectiveError::Missing { missing, .. } if *missing == [1, 2, 3]),
        "{error}"
    );
    assert!(
        error
            .to_string()
            .contains("s for ranks 1, 2, 3 of 4 to join"),
        "{error}"
    );
    let error = join(&store(), 2, 4, SHORT).unwrap_err();
    assert!(
        error.to_string().contains("s for rank 0 of 4 to join"),
        "{error}"
    );
}

#[test]
fn a_rank_taken_before_is_not_joined_again() {
    let store = store();
    join(&store, 0, 1, LONG).unwrap();
    let error = join(&store, 0, 1, LONG).unwrap_err();
    assert!(
        matches!(error, CollectiveError::AlreadyJoined { rank: 0, .. }),
        "{error}"
    );
    let named = GroupOptions {
        name: "second".to_owned(),
        ..options(LONG)
    };
    ProcessGroup::with_options(&store, 0, 1, &named).unwrap();
}

#[test]
fn a_different_world_size_is_refused_on_joining() {
    let store = store();
    thread::scope(|scope| {
        scope.spawn(|| join(&store, 0, 3, SHORT).unwrap_err());
        let error = join(&store, 1, 2, LONG).unwrap_err();
        assert!(
            matches!(error, CollectiveError::WorldSize { found: 3, .. }),
            "{error}"
        );
    });
}

#[test]
fn bad_arguments_leave_the_group_good() {
    assert!(matches!(
        join(&store(), 2, 2, SHORT),
        Err(CollectiveError::Argument(_))
    ));
    assert!(matches!(
        join(&store(), 0, 0, SHORT),
        Err(CollectiveError::Argument(_))
    ));
    run(2, LONG, |mut group| {
        let error = group.broadcast(&mut [0_u8], 2).unwrap_err();
        assert!(matches!(error, CollectiveError::Argument(_)), "{error}");
        group.barrier().unwrap();
    });
}

#[test]
fn a_rank_that_leaves_ends_the_operation_of_all_others_at_once() {
    for connected in [true, false] {
        for len in [1, 1_000_000] {
            let started = Instant::now();
            let errors = run(5, LONG, |mut group| {
                let mut before = Ok(());
                if connected {
                    let mut values = vec![1.0_f32; len];
                    before = group.all_reduce(&mut values, ReduceOp::Sum);
                }
                if group.rank() == 2 {
                    before.unwrap();
                    return None;
                }
                let mut values = vec![1.0_f64; len];
                // A slow rank may receive the abort while it is in the previous operation.
                let after = before.and_then(|()| group.all_reduce(&mut values, ReduceOp::Sum));
                Some(after.unwrap_err())
            });
            assert!(started.elapsed() < LONG / 4, "{:?}", started.elapsed());
            let mut named_the_first = 0;
            for error in errors.into_iter().flatten() {
                let text = error.to_string();
                let named = match error {
                    CollectiveError::Lost { peer, .. } => peer,
                    CollectiveError::Aborted { suspect, cause, .. } => {
                        assert_eq!(cause, AbortCause::Lost);
                        suspect
                    }
                    other => panic!("{other}"),
                };
                named_the_first += u32::from(named == 2);
                // A rank that first dials a rank that has already left can name only that rank.
                assert!(named == 2 || !connected, "{len} elements: {text}");
            }
            assert!(named_the_first >= 1);
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_with_its_address() {
    let given_up = Barrier::new(3);
    let errors = run(3, SHORT, |mut group| {
        if group.rank() == 1 {
            // This rank stays a member, but does not participate until the others have failed.
            given_up.wait();
            return None;
        }
        let error = group.all_reduce(&mut [0_i32], ReduceOp::Max).unwrap_err();
        given_up.wait();
        let again = group.barrier().unwrap_err();
        Some((error, again))
    });
    assert!(errors[1].is_none());
    for (error, again) in errors.into_iter().flatten() {
        let text = error.to_string();
        match error {
            CollectiveError::Timeout { peer, elapsed, .. } => {
                assert!(elapsed >= SHORT);
                assert!(
                    text.starts_with("all_reduce(1 x i32, max) as operation 1: waited ")
                        && text.contains(" s for rank"),
                    "{text}"
                );
                assert!(text.contains(" at 127.0.0.1:"), "{text}");
                assert!(peer == 1 || peer == 0, "{text}");
            }
            CollectiveError::Aborted {
                suspect: 1,
                cause: AbortCause::TimedOut,
                ..
            } => {}
            other => panic!("{other}"),
        }
        assert_eq!(
            again.to_string(),
            format!("this process group can no longer be used: {text}")
        );
    }
}

#[test]
fn different_calls_fail_on_both_sides() {
    // The longer buffers use shared memory.
    for lens in [[10, 11], [10_000, 10_001]] {
        let errors = run(2, LONG, |mut group| {
            group.barrier().unwrap();
            let mut values = vec![0.0_f32; lens[group.rank() as usize]];
            let error = group.all_reduce(&mut values, ReduceOp::Sum).unwrap_err();
            error.to_string()
        });
        let calls = lens.map(|len| format!("all_reduce({len} x f32, sum) as operation 2"));
        // One side may receive the abort of the other before it receives the call.
        let full = |own: usize| {
            errors[own].starts_with(&format!("{}: rank {} at ", calls[own], 1 - own))
                && errors[own].contains(&format!("called {}", calls[1 - own]))
        };
        assert!(full(0) || full(1), "{errors:#?}");
        for (own, error) in errors.iter().enumerate() {
            let is_named = full(own) || error.contains("made a different call");
            assert!(is_named, "{error}");
        }
    }
}

#[test]
fn an_operation_left_out_by_one_rank_is_noticed() {
    let errors = run(2, LONG, |mut group| {
        let mut before = Ok(());
        if group.rank() == 0 {
            before = group.broadcast(&mut [1_u8], 0);
        }
        before.and_then(|()| group.barrier()).unwrap_err()
    });
    assert!(
        errors
            .iter()
            .any(|error| matches!(error, CollectiveError::Mismatch { .. })),
        "{errors:?}"
    );
}

#[test]
fn connections_that_are_no_ranks_are_refused_and_disturb_nobody() {
    let store = store();
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let store = &store;
                scope.spawn(move || {
                    let mut group = join(store, rank, 2, LONG).unwrap();
                    if rank == 0 {
                        // Rank 0 continues only when the intruders have connected.
                        store.wait(&["intruders"], Some(LONG)).unwrap();
                    }
                    group.barrier().unwrap();
                    group.all_reduce(&mut [1_i32], ReduceOp::Sum).unwrap();
                    store.wait(&["refused"], Some(LONG)).unwrap();
                })
            })
            .collect();
        let address = store.get("rdzv/process_group/default/0/1").unwrap();
        let address = String::from_utf8(address.to_vec()).unwrap();
        let (address, _host) = address.split_once(' ').unwrap();
        let connect = || {
            let stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            stream
        };
        let mut browser = connect();
        browser
            .write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:12345\r\n\r\n")
            .unwrap();
        let mut other_group = connect();
        let mut hello = *b"RZPG\x06\0\0\0\0\0\0\0\x01\0\0\0\x02\0\0\0\0\0\0\0................";
        other_group.write_all(&hello).unwrap();
        let mut other_version = connect();
        hello[4] = 9;
        other_version.write_all(&hello).unwrap();
        let _silent = connect();
        drop(connect());
        store.set("intruders", b"1").unwrap();
        for (stream, refusal) in [
            (&mut browser, 1),
            (&mut other_version, 2),
            (&mut other_group, 3),
        ] {
            let mut answer = [0; 32];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(&answer[..6], [b'R', b'Z', b'P', b'F', 2, refusal]);
        }
        store.set("refused", b"1").unwrap();
        for rank in ranks {
            rank.join().unwrap();
        }
    });
}

#[test]
fn a_process_that_took_the_address_of_a_rank_is_not_taken_for_it() {
    let intruder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = intruder.local_addr().unwrap().to_string();
    let store = store();
    let published = format!("{address} 1");
    store
        .set("rdzv/process_group/default/0/1", published.as_bytes())
        .unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = intruder.accept().unwrap();
            let mut hello = [0; 40];
            stream.read_exact(&mut hello).unwrap();
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
                .unwrap();
        });
        let mut group = join(&store, 0, 2, LONG).unwrap();
        let error = group.barrier().unwrap_err().to_string();
        assert!(
            error.contains(&format!(
                "the process at {address} does not speak the protocol of rank 1"
            )),
            "{error}"
        );
        assert!(error.contains("HTTP/1.1 400"), "{error}");
    });
}

#[test]
fn a_monitored_barrier_names_everybody_who_did_not_come() {
    let given_up = Barrier::new(5);
    let errors = run(5, LONG, |mut group| {
        group.all_reduce(&mut [1_i32], ReduceOp::Sum).unwrap();
        group.monitored_barrier(LONG).unwrap();
        // The other ranks stay members, but do not call the barrier until these ranks have failed.
        let comes = matches!(group.rank(), 0 | 2 | 4);
        let error = comes.then(|| group.monitored_barrier(SHORT).unwrap_err());
        given_up.wait();
        error
    });
    let text = errors[0].as_ref().unwrap().to_string();
    assert!(text.contains("for ranks 1, 3 of 5"), "{text}");
    let known = "the last known call of rank 1 is monitored_barrier() as operation 2";
    assert!(text.contains(known), "{text}");
    for rank in [2, 4] {
        match errors[rank].as_ref().unwrap() {
            CollectiveError::Aborted { suspect, cause, .. } => {
                assert_eq!((*suspect, *cause), (1, AbortCause::TimedOut));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_rank_that_dies_ends_a_monitored_barrier_before_its_time() {
    let started = Instant::now();
    let errors = run(4, LONG, |mut group| {
        let before = group.barrier();
        // A slow rank may receive the abort while it is in the previous operation.
        (group.rank() != 2).then(|| {
            let after = before.and_then(|()| group.monitored_barrier(LONG));
            after.unwrap_err()
        })
    });
    assert!(started.elapsed() < LONG / 4);
    let text = errors[0].as_ref().unwrap().to_string();
    assert!(text.contains("rank 2"), "{text}");
}

#[test]
fn a_group_is_rebuilt_after_a_failure_with_a_rank_that_came_back() {
    let store = store();
    let (died, heard) = mpsc::channel();
    thread::scope(|scope| {
        for rank in 0..3 {
            let (store, died) = (&store, died.clone());
            scope.spawn(move || {
                let mut group = join(store, rank, 3, LONG).unwrap();
                if rank == 2 {
                    // This is like the end of its process.
                    drop(group);
                    return died.send(()).unwrap();
                }
                let error = group.all_reduce(&mut [1_i32], ReduceOp::Sum).unwrap_err();
                assert!(!matches!(error, CollectiveError::Timeout { .. }), "{error}");
                let broken = group.barrier().unwrap_err();
                assert!(matches!(broken, CollectiveError::Broken { .. }), "{broken}");
                let mut group = group.rebuild(store).unwrap();
                assert_eq!((group.rank(), group.epoch()), (rank, 1));
                sum_of_three(&mut group);
                sum_of_three(&mut group.rebuild(store).unwrap());
            });
        }
        heard.recv().unwrap();
        let next = GroupOptions {
            epoch: 1,
            ..options(LONG)
        };
        let mut group = ProcessGroup::with_options(&store, 2, 3, &next).unwrap();
        sum_of_three(&mut group);
        sum_of_three(&mut group.rebuild(&store).unwrap());
    });
}

fn sum_of_three(group: &mut ProcessGroup) {
    let mut values = [1_i32, 10];
    group.all_reduce(&mut values, ReduceOp::Sum).unwrap();
    assert_eq!(values, [3, 30]);
    // No rank leaves before every rank has the result.
    group.barrier().unwrap();
}

#[test]
fn who_waits_uses_no_processor() {
    const LATE: Duration = Duration::from_millis(500);
    let used = run(2, LONG, |mut group| {
        // All connections exist before the measurement.
        group.barrier().unwrap();
        if group.rank() == 1 {
            thread::sleep(LATE);
        }
        let begun = Instant::now();
        let before = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        group.barrier().unwrap();
        let after = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        let used = Duration::try_from(after - before).unwrap();
        (begun.elapsed(), used)
    });
    let (waited, used) = used[0];
    assert!(waited >= LATE / 2, "{waited:?}");
    assert!(used < LATE / 20, "{used:?} of {waited:?}");
}
