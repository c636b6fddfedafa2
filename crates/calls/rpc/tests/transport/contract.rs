//! Tests of the rules that every carrier must follow.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::thread;

use std::time::Instant;

use rdzv_rpc::transport::peer_address::host_identity;
use rdzv_rpc::transport::{
    Carrier, PeerAddress, TransportKind, TransportOptions, WriteHalf, connect,
};
use rustix::event::PollFlags;

use super::pump::{fill, read, read_to_end, wait, write, write_all};
use super::world::{KINDS, TEST_LIMIT, listening, meet, options, pair};

/// Returns bytes that depend only on the seed, and random sizes of pieces.
fn stream(seed: u64, length: usize) -> (Vec<u8>, impl FnMut() -> usize) {
    let mut state = seed;
    let mut random = move || {
        // A step of splitmix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 27)
    };
    let bytes = (0..length).map(|_| random() as u8).collect();
    let sizes = move || match random() % 4 {
        0 => 1 + random() as usize % 10,
        1 => 1 + random() as usize % 1000,
        2 => 1 + random() as usize % 20_000,
        _ => 1 + random() as usize % 400_000,
    };
    (bytes, sizes)
}

/// Writes a stream in pieces of random sizes, several at a time.
fn pour(half: &mut dyn WriteHalf, seed: u64, length: usize) {
    let (bytes, mut size) = stream(seed, length);
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let (first, tail) = rest.split_at(size().min(rest.len()));
        let (second, tail) = tail.split_at(size().min(tail.len()));
        let third = &tail[..size().min(tail.len())];
        let parts = [first, second, &[], third].map(IoSlice::new);
        let count = write(half, &parts).unwrap();
        assert!(count > 0 && count <= first.len() + second.len() + third.len());
        rest = &rest[count..];
    }
}

#[test]
fn streams_in_both_directions_arrive_whole() {
    const LENGTH: usize = 3 << 20;
    for kind in KINDS {
        let (mut near, mut far) = pair(kind);
        thread::scope(|scope| {
            // No side closes before both have read everything.
            let there = scope.spawn(|| {
                let mut all = vec![0; LENGTH];
                fill(&mut *far.read, &mut all);
                all
            });
            let back = scope.spawn(|| {
                let mut all = vec![0; LENGTH];
                fill(&mut *near.read, &mut all);
                all
            });
            for (half, seed) in [(&mut near.write, 1), (&mut far.write, 2)] {
                scope.spawn(move || pour(&mut **half, seed, LENGTH));
            }
            assert!(there.join().unwrap() == stream(1, LENGTH).0, "{kind}");
            assert!(back.join().unwrap() == stream(2, LENGTH).0, "{kind}");
        });
    }
}

#[test]
fn what_was_written_before_closing_is_read_before_the_end() {
    for kind in KINDS {
        let (mut near, mut far) = pair(kind);
        write_all(&mut *near.write, b"last words").unwrap();
        near.write.close();
        assert_eq!(
            read_to_end(&mut *far.read).unwrap(),
            b"last words",
            "{kind}"
        );
        assert_eq!(far.read.read(&mut [0; 9]).unwrap(), 0, "it stays closed");
        // The reader of the same side sees the end too, so one thread can end the wait of another.
        assert_eq!(read_to_end(&mut *near.read).unwrap(), b"", "{kind}");
    }
}

#[test]
fn last_words_arrive_although_those_of_the_peer_were_never_read() {
    for kind in KINDS {
        let (mut near, mut far) = pair(kind);
        write_all(&mut *far.write, &[1; 10_000]).unwrap();
        if matches!(kind, TransportKind::Tcp | TransportKind::TlsTcp) {
            // The bytes have arrived, and this side does not read them.
            wait(near.read.descriptor(), PollFlags::IN);
        }
        // Writes as many bytes as fit, so that some are still here when this side closes.
        let mut written = 0;
        while let Ok(count) = near.write.write(&[IoSlice::new(&[7; 100_000])]) {
            written += count;
        }
        near.write.close();
        drop(near);
        let words = read_to_end(&mut *far.read).unwrap();
        // A part of an encrypted TLS record may arrive too.
        assert!(
            words.len() >= written,
            "{kind}: {} of {written}",
            words.len()
        );
        assert!(words.iter().all(|byte| *byte == 7), "{kind}");
    }
}

#[test]
fn a_peer_that_lets_go_has_closed() {
    for kind in KINDS {
        let (near, mut far) = pair(kind);
        drop(near);
        let end = read_to_end(&mut *far.read);
        // A connection that was reset is over as well.
        assert!(
            matches!(&end, Ok(rest) if rest.is_empty()) || end.is_err(),
            "{kind}: {end:?}"
        );
    }
}

#[test]
fn a_reader_asleep_is_woken_by_bytes_and_by_the_end() {
    for kind in KINDS {
        let (mut near, mut far) = pair(kind);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut byte = [0];
                assert_eq!(read(&mut *far.read, &mut byte).unwrap(), 1, "{kind}");
                (byte, read(&mut *far.read, &mut [0]).unwrap())
            });
            write_all(&mut *near.write, b"!").unwrap();
            near.write.close();
            assert_eq!(reader.join().unwrap(), (*b"!", 0), "{kind}");
        });
    }
}

#[test]
fn a_peer_that_does_not_read_stops_the_writer_and_nothing_is_lost() {
    for kind in KINDS {
        let (mut near, mut far) = pair(kind);
        let block = [7; 100_000];
        let mut written = 0;
        loop {
            match near.write.write(&[IoSlice::new(&block)]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => panic!("{kind}: {error}"),
            }
            assert!(written < 100 << 20, "{kind} takes anything");
        }
        thread::scope(|scope| {
            // The writer sleeps until the reader makes room. It then offers the same bytes again.
            let writer = scope.spawn(|| write_all(&mut *near.write, &block));
            let mut all = vec![0; written + block.len()];
            fill(&mut *far.read, &mut all);
            assert!(all.iter().all(|byte| *byte == 7), "{kind}");
            writer.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_writer_asleep_is_woken_when_its_peer_ends() {
    for kind in KINDS {
        let (mut near, far) = pair(kind);
        let block = [7; 100_000];
        while near.write.write(&[IoSlice::new(&block)]).is_ok() {}
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                loop {
                    if let Err(error) = write(&mut *near.write, &[IoSlice::new(&block)]) {
                        return error.kind();
                    }
                }
            });
            drop(far);
            let error = writer.join().unwrap();
            let ends = [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset];
            assert!(ends.contains(&error), "{kind}: {error}");
        });
    }
}

#[test]
fn each_half_has_a_descriptor_of_its_own() {
    for kind in KINDS {
        let (near, _far) = pair(kind);
        let (read, write) = (near.read.descriptor(), near.write.descriptor());
        assert_ne!(read.as_raw_fd(), write.as_raw_fd(), "{kind}");
    }
}

#[test]
fn a_carrier_says_why_it_was_chosen() {
    let reasons = |carriers: (Carrier, Carrier)| [carriers.0.reason, carriers.1.reason];
    assert_eq!(
        reasons(pair(TransportKind::Shared)),
        ["same host", "same host"]
    );
    assert_eq!(
        reasons(pair(TransportKind::Unix)),
        [
            "same host, shared memory is turned off",
            "same host, the peer offered no shared memory"
        ]
    );
    assert_eq!(
        reasons(pair(TransportKind::Tcp)),
        [
            "same host, but Unix sockets are turned off",
            "it connected over TCP"
        ]
    );
}

/// Connects after a change of the peer's address; returns kind and reason.
fn chosen(
    acceptor: &TransportOptions,
    change: impl FnOnce(&mut PeerAddress),
) -> (TransportKind, String) {
    let (mut listener, mut peer_address) = listening(acceptor.clone());
    change(&mut peer_address);
    let (connected, accepted) = meet(&mut listener, &peer_address, &TransportOptions::default());
    let connected = connected.unwrap();
    assert_eq!(accepted.unwrap().kind, connected.kind);
    (connected.kind, connected.reason)
}

#[test]
fn the_nearest_way_that_works_is_taken() {
    let plain = TransportOptions::default();
    let (kind, _) = chosen(&plain, |_| {});
    assert_eq!(kind, TransportKind::Shared);
    let elsewhere = chosen(&plain, |peer_address| {
        peer_address.host = "another".to_owned();
    });
    assert_eq!(elsewhere, (TransportKind::Tcp, "another host".to_owned()));
    let (kind, reason) = chosen(&plain, |peer_address| {
        peer_address.unix = Some("missing".to_owned());
    });
    assert_eq!(kind, TransportKind::Tcp);
    assert!(
        reason.starts_with("same host, but cannot connect to its Unix socket (Connection refused"),
        "{reason}"
    );
    let without = chosen(&options(TransportKind::Tcp), |peer_address| {
        assert_eq!(peer_address.unix, None);
        assert_eq!(peer_address.host, host_identity());
    });
    let reason = "same host, but the peer has no Unix socket".to_owned();
    assert_eq!(without, (TransportKind::Tcp, reason));
    let declined = chosen(&options(TransportKind::Unix), |_| {});
    let reason = "same host, the peer declined shared memory".to_owned();
    assert_eq!(declined, (TransportKind::Unix, reason));
}

#[test]
fn nobody_at_the_address_is_notified_with_the_address() {
    let (listener, peer_address) = listening(options(TransportKind::Tcp));
    drop(listener);
    let error = connect(
        &peer_address,
        &TransportOptions::default(),
        Instant::now() + TEST_LIMIT,
    );
    let text = error.unwrap_err().to_string();
    let address = peer_address.address.to_string();
    assert!(
        text.contains(&address) && text.contains("Connection refused"),
        "{text}"
    );
}
