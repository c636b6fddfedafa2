//! Tests of rings between threads and processes whose ends sleep repeatedly.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{IoSlice, Read};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rdzv_shm::{Consumer, Producer, SharedLink, pair, pass};
use rdzv_testing::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::dup;

/// Time limit of a wait; a side that sleeps longer has lost a wake-up.
const LONG: Timespec = Timespec {
    tv_sec: 60,
    tv_nsec: 0,
};

/// Bytes that show their position in a stream.
///
/// The period is a prime, so no power of two hides an error.
struct Pattern(Vec<u8>);

impl Pattern {
    const PERIOD: usize = 65_521;

    fn new() -> Self {
        let byte = |at: usize| ((at * at) >> 7) as u8 ^ at as u8;
        Self(
            (0..2 * Self::PERIOD)
                .map(|at| byte(at % Self::PERIOD))
                .collect(),
        )
    }

    /// Returns at most `length` bytes from this position.
    fn at(&self, position: usize, length: usize) -> &[u8] {
        let begin = position % Self::PERIOD;
        &self.0[begin..begin + length.min(Self::PERIOD)]
    }
}

fn wait(doorbell: BorrowedFd<'_>) {
    let mut wait = [PollFd::from_borrowed_fd(doorbell, PollFlags::IN)];
    let woken = poll(&mut wait, Some(&LONG)).unwrap();
    assert_eq!(woken, 1, "a wake-up was lost");
}

/// Sends the whole pattern, and returns the number of sleeps.
fn send_all(producer: &mut Producer, total: usize, piece: usize) -> usize {
    let pattern = Pattern::new();
    let (mut sent, mut slept) = (0, 0);
    while sent < total {
        let bytes = pattern.at(sent, piece.min(total - sent));
        let (head, tail) = bytes.split_at(bytes.len() / 3);
        let written = producer
            .write(&[IoSlice::new(head), IoSlice::new(tail)])
            .unwrap();
        sent += written;
        if written == 0 && producer.prepare_to_sleep() {
            slept += 1;
            wait(producer.doorbell());
            producer.awake();
        }
    }
    slept
}

/// Receives and compares every byte, and returns the number of sleeps.
fn receive_all(consumer: &mut Consumer, total: usize, piece: usize) -> usize {
    let pattern = Pattern::new();
    let mut buffer = vec![0; piece.min(Pattern::PERIOD)];
    let (mut received, mut slept) = (0, 0);
    while received < total {
        let length = consumer.read(&mut buffer).unwrap();
        assert!(
            buffer[..length] == *pattern.at(received, length),
            "a byte from {received} on is wrong"
        );
        received += length;
        if length == 0 && consumer.prepare_to_sleep() {
            slept += 1;
            wait(consumer.doorbell());
            consumer.awake();
        }
    }
    assert_eq!(consumer.available().unwrap(), 0);
    slept
}

/// Creates both ends in this process, with separate mappings.
fn links(capacity: usize) -> (SharedLink, SharedLink) {
    let offer = pair::offer(capacity).unwrap();
    let passed = offer
        .descriptors()
        .iter()
        .map(|one| dup(one).unwrap())
        .collect();
    let theirs = pair::accept(&offer.message(), passed).unwrap();
    (offer.taken(), theirs)
}

#[test]
fn threads_stream_through_a_ring_that_is_smaller_than_their_pieces() {
    const TOTAL: usize = 512 << 20;
    let (mut mine, mut theirs) = links(64 << 10);
    let slept = thread::scope(|scope| {
        let reader = scope.spawn(|| receive_all(&mut theirs.consumer, TOTAL, 48 << 10));
        let writer = send_all(&mut mine.producer, TOTAL, 60 << 10);
        (writer, reader.join().unwrap())
    });
    assert!(slept.0 + slept.1 > 0, "no side ever slept");
}

#[test]
fn threads_stream_through_the_smallest_ring_in_small_pieces() {
    const TOTAL: usize = 16 << 20;
    let (mut mine, mut theirs) = links(0);
    thread::scope(|scope| {
        scope.spawn(|| receive_all(&mut theirs.consumer, TOTAL, 700));
        send_all(&mut mine.producer, TOTAL, 999);
    });
}

/// Another process that runs `shm_peer`.
struct Peer {
    process: Process,
    socket: UnixStream,
    link: SharedLink,
}

impl Peer {
    fn start(part: &str, capacity: usize) -> Self {
        let (mut socket, theirs) = UnixStream::pair().unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut command = Command::new(rdzv_testing::program("shm_peer"));
        let process = Process::start(command.arg(part).stdin(OwnedFd::from(theirs)));
        let offer = pair::offer(capacity).unwrap();
        let message = offer.message();
        pass::send(&socket, &[IoSlice::new(&message)], &offer.descriptors()).unwrap();
        socket.read_exact(&mut [0]).unwrap();
        let link = offer.taken();
        Self {
            process,
            socket,
            link,
        }
    }

    /// Ends the peer by the end of the socket, even while it sleeps.
    fn stop(mut self) {
        drop(self.socket);
        assert!(self.process.wait().success());
    }
}

#[test]
fn processes_stream_there_and_back() {
    const TOTAL: usize = 512 << 20;
    let mut peer = Peer::start("echo", 32 << 10);
    let SharedLink { producer, consumer } = &mut peer.link;
    let slept = thread::scope(|scope| {
        let reader = scope.spawn(|| receive_all(consumer, TOTAL, 48 << 10));
        let writer = send_all(producer, TOTAL, 48 << 10);
        (writer, reader.join().unwrap())
    });
    assert!(slept.0 > 0 && slept.1 > 0, "numbers of sleeps: {slept:?}");
    peer.stop();
}

#[test]
fn processes_stream_gigabytes_one_way() {
    const TOTAL: usize = 2 << 30;
    let mut peer = Peer::start("sink", pair::CAPACITY);
    send_all(&mut peer.link.producer, TOTAL, Pattern::PERIOD);
    while peer.link.producer.prepare_to_sleep() {
        wait(peer.link.producer.doorbell());
        peer.link.producer.awake();
    }
    peer.stop();
}

#[test]
fn a_peer_that_was_killed_is_noticed_by_its_socket() {
    let mut peer = Peer::start("echo", 0);
    assert!(peer.link.consumer.prepare_to_sleep());
    peer.process.kill();
    let mut wait = [
        PollFd::from_borrowed_fd(peer.link.consumer.doorbell(), PollFlags::IN),
        PollFd::new(&peer.socket, PollFlags::IN),
    ];
    poll(&mut wait, Some(&LONG)).unwrap();
    let (doorbell, socket) = (wait[0].revents(), wait[1].revents());
    assert!(
        doorbell.is_empty() && !socket.is_empty(),
        "{doorbell:?} {socket:?}"
    );
    assert_eq!(peer.socket.read(&mut [0]).unwrap(), 0);
}
