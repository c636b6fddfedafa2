//! Tests of a peer that breaks the rules of messages.
//!
//! The error names the peer, and its share of memory is bounded.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::thread;

use crate::support::{LONG, join, store};
use rdzv_collective::CollectiveError;
use rdzv_store::Store;

/// Returns a frame of messages with elements of type `u8`.
///
/// The fields are the kind, the tag, the length of the payload in bytes, the number of the message,
/// and the number of elements.
fn frame(kind: u8, tag: u32, payload: u32, number: u64, elements: u64) -> Vec<u8> {
    let mut bytes = b"RZPF".to_vec();
    bytes.extend([kind, 0, 1, 0]);
    bytes.extend(tag.to_le_bytes());
    bytes.extend(payload.to_le_bytes());
    bytes.extend(number.to_le_bytes());
    bytes.extend(elements.to_le_bytes());
    bytes
}

/// Returns the resident memory of this process in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Returns the error of rank 0 after rank 1 has sent these bytes.
///
/// Rank 1 sends only these bytes, on the connection for messages, and then ends its sending if
/// `closes`. Rank 0 waits for a message of 4 bytes with tag 7.
fn error_after(said: &[u8], closes: bool) -> CollectiveError {
    let store = store();
    let peer = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = peer.local_addr().unwrap().port();
    let published = format!("127.0.0.1:{port} {port}");
    store
        .set("rdzv/process_group/default/0/1", published.as_bytes())
        .unwrap();
    thread::scope(|scope| {
        let victim = scope.spawn(|| {
            let mut group = join(&store, 0, 2, LONG).unwrap();
            let error = group.receive(&mut [0_u8; 4], Some(1), 7).unwrap_err();
            let later = group.barrier().unwrap_err().to_string();
            assert!(later.contains("rank 1"), "{later}");
            error
        });
        let mut stream = connect(&store);
        // Rank 1 writes until rank 0 stops reading.
        let _ = stream.write_all(said);
        if closes {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        let mut answers = Vec::new();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let _ = stream.read_to_end(&mut answers);
        victim.join().unwrap()
    })
}

#[test]
fn other_hosts_and_other_users_learn_nothing_of_a_group() {
    let store = store();
    let both = Barrier::new(2);
    thread::scope(|scope| {
        for rank in 0..2 {
            let (store, both) = (&store, &both);
            scope.spawn(move || {
                let mut group = join(store, rank, 2, LONG).unwrap();
                group.barrier().unwrap();
                let text =
                    |key: String| String::from_utf8(store.get(&key).unwrap().to_vec()).unwrap();
                let published = text(format!("rdzv/process_group/default/0/{rank}"));
                assert!(published.starts_with("127.0.0.1:"), "{published}");
                let secret = text("rdzv/process_group/default/0/group".to_owned());
                let secret = secret.split(' ').next().unwrap().replace('-', "");
                let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
                let name = published.split(' ').nth(2).unwrap();
                assert!(sockets.contains(&format!("@{name}\n")), "{sockets}");
                assert!(!sockets.contains(&secret), "{sockets}");
                both.wait();
            });
        }
    });
}

#[test]
fn a_rank_that_only_its_own_host_reaches_is_named() {
    let store = store();
    let published = "127.0.0.1:1 1 rdzv-x another host";
    store
        .set("rdzv/process_group/default/0/1", published.as_bytes())
        .unwrap();
    let error = join(&store, 0, 2, LONG).unwrap_err().to_string();
    let expected = "rank 1 is on another host but listens only on 127.0.0.1:1 there";
    assert!(error.contains(expected), "{error}");
}

/// Connects to rank 0 and sends a hello as rank 1.
fn connect(store: &dyn Store) -> TcpStream {
    let text = |key: &str| {
        store.wait(&[key], Some(LONG)).unwrap();
        String::from_utf8(store.get(key).unwrap().to_vec()).unwrap()
    };
    let group = text("rdzv/process_group/default/0/group");
    let group = group.split(' ').next().unwrap().replace('-', "");
    let group = u128::from_str_radix(&group, 16).unwrap().to_be_bytes();
    let published = text("rdzv/process_group/default/0/0");
    let port = published.split(' ').nth(1).unwrap();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    let mut hello = b"RZPG\x06\0\0\0".to_vec();
    for number in [1_u32, 0, 2, 0] {
        hello.extend(number.to_le_bytes());
    }
    hello.extend(group);
    stream.write_all(&hello).unwrap();
    stream
}

#[test]
fn frames_that_no_rank_sends_end_the_group_and_name_the_peer() {
    let eager = |bytes: u64| frame(6, 7, 0, 1, bytes);
    let flood: Vec<u8> = (1..2000)
        .flat_map(|number| frame(5, 1000 + number as u32, 0, number, 4 << 30))
        .collect();
    let values: Vec<u8> = (1..100)
        .flat_map(|number| {
            let mut one = frame(6, 8, 0, number, 64 << 10);
            one.resize(32 + (64 << 10), 1);
            one
        })
        .collect();
    let piece_too_long = [frame(5, 7, 0, 1, 4), frame(8, 0, 5, 1, 0)].concat();
    let mut request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1:12345\r\n\r\n".to_vec();
    request.truncate(32);
    let table: [(&[u8], &str); 9] = [
        (&eager(4 << 30), "an eager message of 4294967296 bytes"),
        // This length exceeds any memory.
        (&eager(u64::MAX), "an eager message of"),
        (&flood, "message 1025 of 0 eager bytes"),
        (&values, "message 5 of 65536 eager bytes"),
        (&frame(8, 0, 4, 3, 0), "were not requested"),
        (&piece_too_long, "a piece of 5 bytes"),
        (&frame(5, 7, 0, 3, 4), "instead of message 1"),
        // A frame of collectives.
        (&frame(4, 0, 0, 1, 1), "RZPF"),
        (&request, "GET / HTTP/1.1"),
    ];
    let before = resident();
    for (said, expected) in table {
        let error = error_after(said, false);
        let text = error.to_string();
        let is_named = matches!(error, CollectiveError::NotARank { peer: 1, .. });
        assert!(is_named, "{expected}: {text}");
        let is_explained = text.contains("does not speak the protocol of rank 1");
        assert!(
            is_explained && text.contains(expected),
            "{expected}: {text}"
        );
    }
    assert!(resident() < before + (64 << 10), "{} KiB", resident());
}

#[test]
fn an_announcement_of_4_gib_reserves_nothing_and_is_a_mismatch() {
    let error = error_after(&frame(5, 7, 0, 1, 4 << 30), false).to_string();
    let is_named = error.contains("rank 0 expects 4 x u8, but rank 1");
    assert!(
        is_named && error.contains("sent 4294967296 x u8"),
        "{error}"
    );
}

#[test]
fn a_frame_that_is_cut_off_is_a_loss_that_names_the_peer() {
    let whole = frame(6, 7, 0, 1, 4);
    for length in [1, 31, 32] {
        let error = error_after(&whole[..length], true);
        let is_lost = matches!(error, CollectiveError::Lost { peer: 1, .. });
        let text = error.to_string();
        let reason = "connection closed, inside a message";
        assert!(is_lost && text.contains(reason), "{text}");
    }
}

#[test]
fn a_group_without_messages_refuses_those_who_come() {
    let store = store();
    thread::scope(|scope| {
        let rank = scope.spawn(|| join(&store, 1, 2, LONG).unwrap());
        let group = join(&store, 0, 2, LONG).unwrap();
        drop(rank.join().unwrap());
        let error = group.send(&[0_u8], 1, 0).unwrap_err();
        let is_lost = matches!(error, CollectiveError::Lost { peer: 1, .. });
        assert!(is_lost, "{error}");
    });
}
