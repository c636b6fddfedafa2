//! Tests of messages: their order, their memory, and their end at a failure.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::{Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{LONG, far, not_shared, options, run, run_with};
use rdzv_collective::{
    AbortCause, CollectiveError, GroupOptions, GroupQueue, PointToPoint, ProcessGroup, ReduceOp,
};

const SHORT: Duration = Duration::from_millis(300);

/// Zero, one, two lengths of eager messages, and several pieces.
const LENGTHS: [usize; 5] = [0, 1, 4096, 4097, 300_001];

fn values(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|index| index ^ seed << 20).collect()
}

/// Options for one host with shared memory, one host without it, and TCP.
fn transports() -> [GroupOptions; 3] {
    [options(LONG), not_shared(), far()]
}

fn received(messages: &PointToPoint, len: usize, from: Option<u32>, tag: u32) -> (u32, Vec<u32>) {
    let work = messages.receive(vec![0_u32; len], from, tag).unwrap();
    let received = work.wait().unwrap();
    (received.from, received.buffer)
}

#[test]
fn ranks_that_all_send_first_exchange_messages_of_every_length() {
    for options in transports() {
        run_with(3, &options, |group| {
            let (own, messages) = (group.rank(), group.point_to_point());
            for len in LENGTHS {
                let others = || (0..3).filter(|rank| *rank != own);
                let sent: Vec<_> = others()
                    .map(|to| messages.send(values(own, len), to, 5).unwrap())
                    .collect();
                for from in others() {
                    let got = received(&messages, len, Some(from), 5);
                    assert!(got == (from, values(from, len)), "{len} from {from}");
                }
                for work in sent {
                    assert!(work.wait().unwrap() == values(own, len));
                }
            }
        });
    }
}

#[test]
fn a_long_message_passes_a_collective_operation_and_the_other_way_round() {
    run(2, LONG, |group| {
        let (own, mut queue) = (group.rank(), GroupQueue::new(group));
        let messages = queue.point_to_point();
        if own == 0 {
            let sent = messages.send(values(0, 1_000_000), 1, 0).unwrap();
            // The other rank has not posted its receive yet.
            queue.group().unwrap().barrier().unwrap();
            let reduced = queue.all_reduce_async(vec![1_i32], ReduceOp::Sum).unwrap();
            sent.wait().unwrap();
            messages.send(vec![1_u32], 1, 1).unwrap().wait().unwrap();
            assert_eq!(reduced.wait().unwrap(), [2]);
        } else {
            queue.group().unwrap().barrier().unwrap();
            assert!(received(&messages, 1_000_000, None, 0).1 == values(0, 1_000_000));
            // The other rank waits for this message in a collective operation.
            received(&messages, 1, Some(0), 1);
            queue
                .group()
                .unwrap()
                .all_reduce(&mut [1_i32], ReduceOp::Sum)
                .unwrap();
        }
    });
}

#[test]
fn messages_do_not_overtake_one_another_whatever_their_length() {
    const MANY: usize = 600;
    let length = |number: usize| [3, 5000, 17, 0, 4096][number % 5];
    for options in transports() {
        run_with(2, &options, |group| {
            let messages = group.point_to_point();
            if group.rank() == 0 {
                let works: Vec<_> = (0..MANY)
                    .map(|number| {
                        let buffer = values(number as u32, length(number));
                        messages.send(buffer, 1, number as u32 % 2).unwrap()
                    })
                    .collect();
                works
                    .into_iter()
                    .for_each(|work| drop(work.wait().unwrap()));
            } else {
                // The tags in order, with two thirds of the receives from any rank.
                for tag in 0..2 {
                    for number in (tag..MANY).step_by(2) {
                        let from = (number % 3 == 0).then_some(0);
                        let (_, got) = received(&messages, length(number), from, tag as u32);
                        assert!(got == values(number as u32, length(number)), "{number}");
                    }
                }
            }
        });
    }
}

#[test]
fn receives_take_messages_in_the_order_in_which_they_were_posted() {
    let posted = Barrier::new(3);
    run(3, LONG, |group| {
        let (own, messages) = (group.rank(), group.point_to_point());
        if own > 0 {
            posted.wait();
            for number in 0..2 {
                let sent = messages.send(vec![own * 10 + number], 0, 4).unwrap();
                sent.wait().unwrap();
            }
            return;
        }
        let receive = |from| messages.receive(vec![0_u32], from, 4).unwrap();
        let works = [Some(1), None, Some(2), None].map(receive);
        posted.wait();
        let got = works.map(|work| {
            let received = work.wait().unwrap();
            (received.from, received.buffer[0])
        });
        let mut all: Vec<u32> = got.iter().map(|(_, value)| *value).collect();
        all.sort_unstable();
        assert_eq!(all, [10, 11, 20, 21], "{got:?}");
        assert_eq!((got[0].0, got[2].0), (1, 2));
        // The first message of rank 1 goes to the first receive. The first message of rank 2 goes
        // to the first receive for it.
        assert_eq!(got[0].1, 10, "{got:?}");
        let of_rank_2: Vec<u32> = got
            .iter()
            .filter(|one| one.0 == 2)
            .map(|one| one.1)
            .collect();
        assert!(of_rank_2.is_sorted(), "{got:?}");
    });
}

#[test]
fn messages_that_nobody_asks_for_stay_with_their_sender() {
    const MANY: usize = 1500;
    let checked = Barrier::new(2);
    run(2, LONG, |group| {
        let messages = group.point_to_point();
        let length = 16_384_usize;
        if group.rank() == 0 {
            let works: Vec<_> = (0..MANY)
                .map(|number| messages.send(values(number as u32, length), 1, 8).unwrap())
                .collect();
            // The last message is not sent yet, because the window of the other rank is full.
            messages.send(vec![1_u8], 1, 0).map(drop).unwrap();
            works[3].wait_timeout(LONG);
            let ended = works.iter().filter(|work| work.is_done()).count();
            assert_eq!(ended, 4, "256 KiB of 64 KiB each");
            checked.wait();
            works
                .into_iter()
                .for_each(|work| drop(work.wait().unwrap()));
        } else {
            // This rank is connected, but asks for another message.
            let other = messages.receive(vec![0_u8], Some(0), 0).unwrap();
            checked.wait();
            assert!(!other.is_done(), "it waits behind the others");
            for number in 0..MANY {
                assert!(received(&messages, length, None, 8).1 == values(number as u32, length));
            }
            other.wait().unwrap();
        }
    });
}

#[test]
fn a_message_of_another_length_or_type_is_an_error_that_names_both() {
    for (len, eager) in [(5, true), (50_000, false)] {
        let errors = run(2, LONG, |group| {
            if group.rank() == 0 {
                let sent = group.send(&vec![1_u16; len], 1, 3);
                // Short values may be in flight before the other rank has checked them.
                let error = sent
                    .err()
                    .or_else(|| group.send(&vec![1_u16; 50_000], 1, 3).err());
                error.unwrap()
            } else {
                group.receive(&mut [0_u8; 4], Some(0), 3).unwrap_err()
            }
        });
        let text = errors[1].to_string();
        let expected = "receive(4 x u8, from rank 0, tag 3) as operation 1: rank 1 expects 4 x u8, but rank 0 at 127.0.0.1:";
        assert!(text.starts_with(expected), "{text}");
        assert!(
            text.contains(&format!(" sent {len} x u16 with this tag")),
            "{text}"
        );
        match &errors[0] {
            CollectiveError::Aborted { cause, .. } => assert_eq!(*cause, AbortCause::Mismatch),
            CollectiveError::Broken { .. } if eager => {}
            // The connection may have ended before the reason was read.
            CollectiveError::Lost { peer: 1, .. } => {}
            other => panic!("{other}"),
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named_by_all_who_wait_for_it() {
    let posted = Barrier::new(2);
    let started = Instant::now();
    run(3, LONG, |mut group| {
        let messages = group.point_to_point();
        match group.rank() {
            0 => {
                let receive = messages.receive(vec![0_u8], Some(2), 1).unwrap();
                let send = messages.send(vec![0_u8; 100_000], 2, 1).unwrap();
                posted.wait();
                for error in [receive.wait().map(drop), send.wait().map(drop)] {
                    let error = error.unwrap_err();
                    let is_named = matches!(
                        error,
                        CollectiveError::Lost { peer: 2, .. } | CollectiveError::Broken { .. }
                    );
                    assert!(
                        is_named && error.to_string().contains("lost rank 2"),
                        "{error}"
                    );
                }
                let later = group.barrier().unwrap_err();
                assert!(matches!(later, CollectiveError::Broken { .. }), "{later}");
            }
            1 => {
                // The other two ranks leave, one of them because its group is broken.
                let error = group.receive(&mut [0_u8], None, 1).unwrap_err();
                let is_named = matches!(
                    error,
                    CollectiveError::Lost { .. } | CollectiveError::Aborted { suspect: 2, .. }
                );
                assert!(is_named, "{error}");
            }
            _ => {
                posted.wait();
            }
        }
    });
    assert!(started.elapsed() < LONG / 4);
}

#[test]
fn what_was_sent_arrives_although_its_sender_has_left() {
    for options in transports() {
        let left = Barrier::new(2);
        run_with(2, &options, |group| {
            if group.rank() == 0 {
                // The other rank is connected, and asks only for the last message.
                let messages = group.point_to_point();
                for number in 0..10_u32 {
                    messages
                        .send(values(number, 1000), 1, 0)
                        .unwrap()
                        .wait()
                        .unwrap();
                }
                group.send(&[7_u8], 1, 1).unwrap();
                drop(group);
                left.wait();
                return;
            }
            group.receive(&mut [0_u8], Some(0), 1).unwrap();
            left.wait();
            for number in 0..10 {
                let got = received(&group.point_to_point(), 1000, None, 0);
                assert!(got == (0, values(number, 1000)));
            }
            let error = group.receive(&mut [0_u8], Some(0), 1).unwrap_err();
            assert!(
                matches!(error, CollectiveError::Lost { peer: 0, .. }),
                "{error}"
            );
        });
    }
}

#[test]
fn the_end_of_the_time_limit_names_rank_tag_and_time() {
    type Call = fn(&ProcessGroup) -> Result<(), CollectiveError>;
    let calls: [(Call, &str, &str); 3] = [
        (
            |group| group.send(&[0_u32; 20_000], 1, 6),
            "send(20000 x u32, to rank 1, tag 6) as operation 2: waited 0.3 s for rank 1 at ",
            "it has posted no receive",
        ),
        (
            |group| group.receive(&mut [0_u8], Some(1), 6).map(drop),
            "receive(1 x u8, from rank 1, tag 6) as operation 2: waited 0.3 s for rank 1 at ",
            "it has sent no message with this tag",
        ),
        (
            |group| group.receive(&mut [0_u8], None, 6).map(drop),
            "receive(1 x u8, from any rank, tag 6) as operation 2: ",
            "no rank sent a message with this tag",
        ),
    ];
    for (call, begin, state) in calls {
        let ended = Barrier::new(2);
        let error = run(2, LONG, |mut group| {
            if group.rank() == 1 {
                group.receive(&mut [0_u8], Some(0), 0).unwrap();
                ended.wait();
                return None;
            }
            // Both ranks are connected after this message.
            group.send(&[0_u8], 1, 0).unwrap();
            group.set_timeout(SHORT);
            let error = call(&group).unwrap_err();
            ended.wait();
            Some(error)
        });
        let error = error[0].as_ref().unwrap();
        let text = error.to_string();
        // The operation may end late on a busy machine.
        let (before, after) = begin.split_once("0.3 s").unwrap_or((begin, ""));
        assert!(text.starts_with(before) && text.contains(after), "{text}");
        assert!(text.contains(state), "{text}");
        let (CollectiveError::Timeout { elapsed, .. } | CollectiveError::NoSender { elapsed, .. }) =
            error
        else {
            panic!("{text}");
        };
        assert!(*elapsed >= SHORT);
    }
}

#[test]
fn functions_are_called_when_messages_have_ended_with_success_or_without() {
    run(2, LONG, |group| {
        let (sender, ends) = mpsc::channel();
        let messages = group.point_to_point();
        let other = 1 - group.rank();
        let receive = messages.receive(vec![0_u8], Some(other), 0).unwrap();
        let lost = messages.receive(vec![0_u8], Some(other), 9).unwrap();
        let tell = |what| {
            let sender = sender.clone();
            move || sender.send(what).unwrap()
        };
        receive.on_done(tell("received"));
        lost.on_done(tell("lost"));
        let sent = messages.send(vec![0_u8], other, 0).unwrap();
        assert_eq!(ends.recv_timeout(LONG), Ok("received"));
        sent.wait().unwrap();
        drop(group);
        assert_eq!(ends.recv_timeout(LONG), Ok("lost"));
        assert!(lost.is_done());
        lost.on_done(tell("later"));
        assert_eq!(ends.recv_timeout(LONG), Ok("later"));
        drop(sender);
        assert!(ends.recv_timeout(LONG).is_err(), "each is called once");
    });
}

#[test]
fn a_function_can_drop_the_group_and_begin_messages() {
    let posted = Barrier::new(2);
    run(2, LONG, |group| {
        let messages = group.point_to_point();
        if group.rank() == 1 {
            posted.wait();
            group.send(&[0_u8], 0, 0).unwrap();
            // This rank stays a member until the other rank has left.
            posted.wait();
            return;
        }
        let (sender, ended) = mpsc::channel();
        let receive = messages.receive(vec![0_u8], Some(1), 0).unwrap();
        let (again, group) = (messages, Mutex::new(Some(group)));
        receive.on_done(move || {
            let sent = again.send(vec![0_u8; 100_000], 1, 1);
            drop(group.lock().unwrap().take());
            let late = again.send(vec![0_u8], 1, 2).map(drop);
            sender.send((sent.unwrap(), late)).unwrap();
        });
        posted.wait();
        let (sent, late) = ended.recv_timeout(LONG).unwrap();
        for error in [sent.wait().map(drop), late] {
            let error = error.unwrap_err();
            assert!(matches!(error, CollectiveError::Broken { .. }), "{error}");
        }
        receive.wait().unwrap();
        posted.wait();
    });
}

#[test]
fn a_breaker_ends_messages_that_are_in_progress() {
    let ended = Barrier::new(2);
    run(2, LONG, |mut group| {
        if group.rank() == 1 {
            ended.wait();
            let error = group.barrier().unwrap_err();
            assert!(error.to_string().contains("rank 0"), "{error}");
            return;
        }
        let messages = group.point_to_point();
        let works = [1, 2].map(|tag| messages.receive(vec![0_u8], Some(1), tag).unwrap());
        group.breaker()();
        let [first, second] = works.map(|work| work.wait().unwrap_err());
        let is_interrupted = matches!(first, CollectiveError::Interrupted { rank: 0, .. });
        assert!(is_interrupted, "{first}");
        // The first operation may have ended the group before the second had begun.
        assert!(second.to_string().contains("was interrupted"), "{second}");
        let later = messages.send(vec![0_u8], 1, 0).unwrap_err();
        assert!(matches!(later, CollectiveError::Broken { .. }), "{later}");
        let later = group.barrier().unwrap_err();
        assert!(matches!(later, CollectiveError::Broken { .. }), "{later}");
        ended.wait();
    });
}

#[test]
fn a_failed_collective_operation_ends_messages_here_and_there() {
    run(2, LONG, |mut group| {
        let work = group
            .point_to_point()
            .receive(vec![0_u8], Some(1 - group.rank()), 0);
        let work = work.unwrap();
        let error = if group.rank() == 0 {
            group.all_reduce(&mut [0_u8], ReduceOp::Sum)
        } else {
            group.all_reduce(&mut [0_u16], ReduceOp::Sum)
        };
        error.unwrap_err();
        let error = work.wait().unwrap_err();
        assert!(
            matches!(
                error,
                CollectiveError::Broken { .. }
                    | CollectiveError::Aborted { .. }
                    | CollectiveError::Lost { .. }
            ),
            "{error}"
        );
    });
}

#[test]
fn a_receive_that_waits_uses_no_processor() {
    const LATE: Duration = Duration::from_millis(500);
    let used = run(2, LONG, |group| {
        // Both ranks are connected after this message.
        let other = 1 - group.rank();
        let sent = group.point_to_point().send(vec![0_u8], other, 0).unwrap();
        group.receive(&mut [0_u8], Some(other), 0).unwrap();
        sent.wait().unwrap();
        if group.rank() == 1 {
            thread::sleep(LATE);
            group.send(&[0_u8], 0, 1).unwrap();
            group.receive(&mut [0_u8], None, 2).unwrap();
            return Duration::ZERO;
        }
        let messages = group.point_to_point();
        let receive = messages.receive(vec![0_u8], None, 1).unwrap();
        let (sender, ended) = mpsc::channel();
        // The thread that moves messages measures the processor time that it has used.
        receive.on_done(move || {
            let used = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            sender.send(used).unwrap();
        });
        let used = ended.recv_timeout(LONG).unwrap();
        receive.wait().unwrap();
        messages.send(vec![0_u8], 1, 2).unwrap().wait().unwrap();
        Duration::try_from(used).unwrap()
    });
    assert!(used[0] < LATE / 10, "{:?} of {LATE:?}", used[0]);
}
