//! Tests of a ring with a correct peer, and with one that overwrites the ring.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::sealed::{self, Pages};

/// Creates both ends with separate mappings; returns the consumer's layout too.
fn ring(capacity: usize) -> (Producer, Consumer, RingLayout) {
    let length = RingLayout::length(capacity);
    let (file, mine) = sealed::create("test", length, Pages::Reserved).unwrap();
    let theirs = sealed::open(&file, length).unwrap();
    let (data, space) = (Doorbell::new().unwrap(), Doorbell::new().unwrap());
    let (theirs, mine) = (Arc::new(theirs), Arc::new(mine));
    let layout = RingLayout::new(theirs, 0, capacity);
    let far = (data.duplicate().unwrap(), space.duplicate().unwrap());
    let producer = Producer::new(RingLayout::new(mine, 0, capacity), data, space);
    let consumer = Consumer::new(layout.clone(), far.0, far.1);
    (producer, consumer, layout)
}

fn rings(doorbell: BorrowedFd<'_>) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut wait = [PollFd::from_borrowed_fd(doorbell, PollFlags::IN)];
    poll(&mut wait, Some(&Timespec::default())).unwrap() == 1
}

#[derive(Debug, Clone)]
enum Step {
    Write(Vec<usize>),
    Read(usize),
    Consumer,
    Producer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => prop::collection::vec(0..3000_usize, 0..4).prop_map(Step::Write),
        3 => (0..9000_usize).prop_map(Step::Read),
        1 => Just(Step::Consumer),
        1 => Just(Step::Producer),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    /// Compares the ring with a queue.
    ///
    /// The doorbell rings exactly when a sleeping side can continue.
    #[test]
    fn it_is_a_queue_of_bytes(steps in steps(), to_the_end in 0..20_000_u64, from_zero: bool) {
        const CAPACITY: usize = 4096;
        let (mut producer, mut consumer, layout) = ring(CAPACITY);
        // Also tests a stream whose positions are near their maximum.
        let begin = if from_zero { 0 } else { u64::MAX - to_the_end };
        for position in [WRITTEN, READ] {
            layout.position(position).store(begin, Ordering::Relaxed);
        }
        (producer.written, producer.read, consumer.written, consumer.read) = (begin, begin, begin, begin);
        let mut queue = VecDeque::new();
        let mut next = 0_u8;
        let (mut consumer_sleeps, mut producer_sleeps) = (false, false);
        for step in steps {
            match step {
                Step::Write(lengths) => {
                    let parts: Vec<Vec<u8>> = lengths
                        .iter()
                        .map(|length| (0..*length).map(|_| { next = next.wrapping_add(7); next }).collect())
                        .collect();
                    let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
                    let written = producer.write(&slices).unwrap();
                    if producer_sleeps {
                        producer_sleeps = false;
                        prop_assert!(!rings(producer.doorbell()));
                    }
                    let all = parts.concat();
                    prop_assert_eq!(written, all.len().min(CAPACITY - queue.len()));
                    queue.extend(&all[..written]);
                    if consumer_sleeps {
                        prop_assert_eq!(rings(consumer.doorbell()), written > 0);
                        consumer_sleeps = written == 0;
                    }
                }
                Step::Read(length) => {
                    let mut bytes = vec![0; length];
                    let read = consumer.read(&mut bytes).unwrap();
                    consumer_sleeps = false;
                    prop_assert_eq!(read, length.min(queue.len()));
                    let expected: Vec<u8> = queue.drain(..read).collect();
                    prop_assert_eq!(&bytes[..read], &expected[..]);
                    if producer_sleeps && read > 0 {
                        prop_assert_eq!(rings(producer.doorbell()), queue.len() <= CAPACITY / 2);
                        producer_sleeps = queue.len() > CAPACITY / 2;
                    }
                }
                Step::Consumer => {
                    consumer.awake();
                    consumer_sleeps = consumer.prepare_to_sleep();
                    prop_assert!(!rings(consumer.doorbell()));
                    prop_assert_eq!(consumer_sleeps, queue.is_empty());
                }
                Step::Producer => {
                    producer.awake();
                    prop_assert!(!rings(producer.doorbell()));
                    producer_sleeps = producer.prepare_to_sleep();
                    prop_assert_eq!(producer_sleeps, queue.len() > CAPACITY / 2);
                }
            }
            prop_assert_eq!(consumer.available().unwrap(), queue.len());
            prop_assert_eq!(producer.space().unwrap(), CAPACITY - queue.len());
        }
    }

    /// Checks that a peer that overwrites the head of a ring does no harm.
    ///
    /// The result is an error or some bytes, and no access is outside of the ring.
    #[test]
    fn a_peer_that_scribbles_does_no_harm(
        nonsense in prop::collection::vec((0..512_usize, any::<u64>(), 0..9000_usize), 1..40),
    ) {
        const CAPACITY: usize = 4096;
        let (mut producer, mut consumer, layout) = ring(CAPACITY);
        let bytes = vec![1; 9000];
        let mut into = vec![0; 9000];
        for (at, value, length) in nonsense {
            layout.position(at / 8 * 8).store(value, Ordering::Relaxed);
            if let Ok(written) = producer.write(&[IoSlice::new(&bytes[..length])]) {
                prop_assert!(written <= length);
            }
            layout.position(at / 8 * 8).store(value, Ordering::Relaxed);
            if let Ok(read) = consumer.read(&mut into[..length]) {
                prop_assert!(read <= length);
            }
            layout.position(at / 8 * 8).store(value, Ordering::Relaxed);
            if consumer.prepare_to_sleep() {
                consumer.awake();
            }
            if producer.prepare_to_sleep() {
                producer.awake();
            }
        }
    }
}

#[test]
fn a_position_that_cannot_be_is_named() {
    let (mut producer, mut consumer, layout) = ring(4096);
    layout.position(WRITTEN).store(5000, Ordering::Relaxed);
    let error = consumer.read(&mut [0; 10]).unwrap_err().to_string();
    assert!(
        error.contains("5000 bytes are in a ring of 4096"),
        "{error}"
    );
    assert!(!consumer.prepare_to_sleep(), "no side would wake it up");
    layout.position(READ).store(1, Ordering::Relaxed);
    let error = producer.write(&[IoSlice::new(&[0; 5000])]).unwrap_err();
    assert!(matches!(error, ShmError::Broken { .. }), "{error}");
    assert!(!producer.prepare_to_sleep(), "no side would wake it up");
}

#[test]
fn while_nobody_sleeps_nobody_rings() {
    let (mut producer, mut consumer, _) = ring(4096);
    for _ in 0..10 {
        assert_eq!(producer.write(&[IoSlice::new(&[7; 5000])]).unwrap(), 4096);
        assert_eq!(consumer.read(&mut [0; 5000]).unwrap(), 4096);
    }
    assert!(!rings(consumer.doorbell()) && !rings(producer.doorbell()));
}

#[test]
fn who_reads_after_all_is_not_rung_for() {
    let (mut producer, mut consumer, _) = ring(4096);
    assert!(consumer.prepare_to_sleep());
    assert_eq!(consumer.read(&mut [0; 10]).unwrap(), 0);
    producer.write(&[IoSlice::new(&[1; 10])]).unwrap();
    assert!(!rings(consumer.doorbell()), "no side sleeps");
    consumer.read(&mut [0; 10]).unwrap();
    assert!(consumer.prepare_to_sleep());
    producer.write(&[IoSlice::new(&[1; 10])]).unwrap();
    assert!(rings(consumer.doorbell()));
    consumer.read(&mut [0; 10]).unwrap();
    assert!(consumer.prepare_to_sleep());
    assert!(!rings(consumer.doorbell()), "those bytes were read");
}
