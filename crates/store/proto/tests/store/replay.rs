//! Replays the recorded exchanges of PyTorch's clients, byte for byte.
//!
//! The server is that of `golden.rs`: the machine in one test binary, a server with sockets in the
//! other.

use std::collections::BTreeSet;

use crate::golden::Clients;
use crate::recorded::{bytes_of, exchanges, unhex};

#[test]
fn every_basic_operation_is_answered_as_recorded() {
    assert_eq!(play("libuv/core"), 71);
}

#[test]
fn blocking_operations_are_answered_as_recorded() {
    assert_eq!(play("libuv/two-clients"), 16);
}

#[test]
fn joining_is_answered_as_recorded() {
    assert_eq!(play("libuv/init"), 3);
}

#[test]
fn bad_input_is_answered_as_recorded_or_better() {
    assert_eq!(play("libuv/malformed"), 25);
}

/// A server, as its clients see it.
/// Connections have the same names as in the recording.
pub(crate) trait Server {
    /// Starts a server that has no connections.
    fn start() -> Self;
    /// Opens a connection.
    fn open(&mut self, connection: &str);
    /// Closes the client's end of a connection.
    fn close(&mut self, connection: &str);
    /// Sends bytes from the client.
    /// Ignores the error if the server has already closed the connection.
    fn send(&mut self, connection: &str, bytes: &[u8]);
    /// Returns the next `length` bytes that the server sends.
    fn receive(&mut self, connection: &str, length: usize) -> Vec<u8>;
    /// Waits for the server to close the connection without sending more bytes.
    fn expect_close(&mut self, connection: &str);
    /// Asserts that no open connection has unread bytes.
    fn assert_quiet(&mut self);
}

/// Exchanges in which rdzv's server is better than the recorded one.
///
/// Each has the reason, and rdzv's frames in place of the recorded ones. `>` marks bytes of the
/// client, `<` those of the server; `<close` is the server's close.
const BETTER: [(&str, &str, &[&str]); 5] = [
    (
        "wait_cas_failed_absent",
        "no client is woken for a key that does not exist; the client cancels in its own time",
        &[
            "A>06010000000000000004000000000000002f773132",
            "B>0204000000000000002f7731320300000000000000666f6f0300000000000000626172",
            "B<0300000000000000666f6f",
            "A>0c",
            "A<01",
        ],
    ),
    (
        "bad_magic",
        "closed immediately, not only when more comes",
        &["B>00cff7853c", "B<close"],
    ),
    (
        "no_validate",
        "closed immediately instead of carried out late and without validation",
        &["C>0d01000000", "C<close"],
    ),
    (
        "http_get",
        "closed immediately, not only when more comes",
        &["D>474554202f20485454502f312e300d0a0d0a", "D<close"],
    ),
    (
        "validate_split",
        "TCP may cut anywhere, so this is a validation like any other",
        &["E>00", "E>cef7853c", "E>0d03000000", "E<03000000"],
    ),
];

/// Plays a group of exchanges against a server; returns their number.
fn play(group: &str) -> usize {
    let mut server = Clients::start();
    let exchanges = exchanges(group);
    for exchange in &exchanges {
        let name = exchange["name"].as_str().unwrap();
        let unordered = exchange["compare"] == "list_keys_unordered";
        let ours = BETTER.iter().find(|(better, ..)| *better == name);
        assert!(
            ours.is_none() || exchange["conformance"] == "may",
            "{name} must be equal"
        );
        for frame in exchange["frames"].as_array().unwrap() {
            let connection = frame["conn"].as_str().unwrap();
            match (frame["event"].as_str(), frame["dir"].as_str().unwrap()) {
                (Some("open"), _) => server.open(connection),
                _ if ours.is_some() => {}
                (Some("close"), "c2s") => server.close(connection),
                (Some("close"), _) => server.expect_close(connection),
                (_, "c2s") => server.send(connection, &bytes_of(frame)),
                _ => {
                    let expected = bytes_of(frame);
                    let received = server.receive(connection, expected.len());
                    let equal = if unordered {
                        listed(&received) == listed(&expected)
                    } else {
                        received == expected
                    };
                    assert!(equal, "{name}: {received:02x?} instead of {expected:02x?}");
                }
            }
        }
        for frame in ours.iter().flat_map(|(_, _, frames)| *frames) {
            play_ours(name, frame, &mut server);
        }
        server.assert_quiet();
    }
    exchanges.len()
}

fn play_ours(name: &str, frame: &str, server: &mut impl Server) {
    let (connection, rest) = frame.split_at(1);
    match rest.split_at(1) {
        (">", hex) => server.send(connection, &unhex(hex).unwrap()),
        (_, "close") => server.expect_close(connection),
        (_, hex) => {
            let expected = unhex(hex).unwrap();
            assert_eq!(
                server.receive(connection, expected.len()),
                expected,
                "{name}"
            );
        }
    }
}

/// Returns the keys of a `LIST_KEYS` answer, whose order means nothing.
fn listed(mut answer: &[u8]) -> BTreeSet<Vec<u8>> {
    let mut number = || -> usize {
        let (head, rest) = answer.split_first_chunk::<8>().unwrap();
        answer = rest;
        u64::from_le_bytes(*head) as usize
    };
    let count = number();
    let mut keys = BTreeSet::new();
    let mut rest = answer;
    for _ in 0..count {
        let (head, tail) = rest.split_first_chunk::<8>().unwrap();
        let (key, tail) = tail.split_at(u64::from_le_bytes(*head) as usize);
        keys.insert(key.to_vec());
        rest = tail;
    }
    assert!(
        rest.is_empty() && keys.len() == count,
        "a list of {count} keys"
    );
    keys
}
