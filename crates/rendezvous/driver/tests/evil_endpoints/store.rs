//! Endpoints for a client of a store.

use std::time::Duration;

use crate::peer::Peer;
use crate::table::{GARBAGE, Row, get, http_in_turn, http_redirect, list, say, ssh};

pub(crate) const ROWS: &[Row] = &[
    // Instead of an answer to the preamble.
    get("silent", Peer::hold, &["sent nothing", "address and port"]),
    get("accepts and closes", hang_up, &["closed the connection"]),
    get(
        "resets",
        Peer::reset,
        &["does not speak", "check the address"],
    ),
    get("immediate HTTP", http_at_once, &["an HTTP server", "400"]),
    get(
        "HTTP after a whole request",
        http_in_turn,
        &["an HTTP server", "404"],
    ),
    get("redirect", http_redirect, &["an HTTP server", "301"]),
    get("HTTP/2 settings", http2, &["HTTP/2 or gRPC"]),
    get("TLS alert", tls_alert, &["a TLS server", "plain"]),
    get("SSH banner", ssh, &["an SSH server", "OpenSSH"]),
    get("mail banner", mail, &["a mail or FTP server"]),
    get("endless banner", endless, &["it answered"]),
    get("another nonce", another_nonce, &["it answered"]),
    get("half a nonce", half_a_nonce, &["2 of 4 bytes"]),
    // After a correct handshake.
    get(
        "endless value",
        endless_value,
        &["get key key", "limit of 1048576", "max_reply_bytes"],
    ),
    get(
        "negative length",
        negative_length,
        &["get key key", "impossible length -1"],
    ),
    get(
        "half a value, then the end",
        half_a_value,
        &["get key key", "connection to the store", "was lost"],
    ),
    get(
        "half a value, then silence",
        stuck_value,
        &["get key key", "did not answer"],
    ),
    get(
        "a byte at a time",
        slow_value,
        &["get key key", "did not answer"],
    ),
    get("a wrong end of the wait", wrong_release, &["key", "0x07"]),
    get(
        "reset in the value",
        reset_in_value,
        &["get key key", "connection to the store", "was lost"],
    ),
    list(
        "a huge count",
        huge_count,
        &["list the keys", "limit of 1048576", "max_reply_bytes"],
    ),
    list(
        "a count that is too small for what follows",
        many_keys,
        &["list the keys", "limit of 1048576"],
    ),
    list(
        "a huge key",
        huge_key,
        &["list the keys", "limit of 1048576"],
    ),
    list(
        "a negative count",
        negative_count,
        &["impossible length -1"],
    ),
];

fn hang_up(mut peer: Peer) {
    let _ = peer.read(10);
}

fn http_at_once(peer: Peer) {
    say(peer, b"HTTP/1.1 400 Bad Request\r\n\r\n");
}

fn http2(peer: Peer) {
    say(peer, &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100]);
}

fn tls_alert(peer: Peer) {
    say(peer, &[0x15, 3, 1, 0, 2, 2, 70]);
}

fn mail(peer: Peer) {
    say(peer, b"220 mail.example.com ESMTP\r\n");
}

fn endless(mut peer: Peer) {
    peer.flood(GARBAGE);
}

fn another_nonce(mut peer: Peer) {
    if peer.read(10).is_some() {
        say(peer, &[0xff; 4]);
    }
}

fn half_a_nonce(mut peer: Peer) {
    if let Some(preamble) = peer.read(10) {
        say(peer, &preamble[6..8]);
    }
}

fn endless_value(mut peer: Peer) {
    if peer.release().is_some() {
        peer.send((1_u64 << 60).to_le_bytes());
        peer.flood(GARBAGE);
    }
}

fn negative_length(mut peer: Peer) {
    if peer.release().is_some() {
        say(peer, &(-1_i64).to_le_bytes());
    }
}

fn half_a_value(mut peer: Peer) {
    if peer.release().is_some() {
        peer.send(100_u64.to_le_bytes());
        peer.send([7; 50]);
    }
}

fn stuck_value(mut peer: Peer) {
    if peer.release().is_some() {
        peer.send(100_u64.to_le_bytes());
        say(peer, &[7; 50]);
    }
}

fn slow_value(mut peer: Peer) {
    if peer.release().is_some() {
        peer.send(4096_u64.to_le_bytes());
        peer.drip(GARBAGE, Duration::from_millis(50));
    }
}

fn wrong_release(mut peer: Peer) {
    if peer.greet(false).is_some() {
        peer.read(1);
        say(peer, &[7]);
    }
}

fn reset_in_value(mut peer: Peer) {
    if peer.release().is_some() {
        peer.send(100_u64.to_le_bytes());
        peer.reset();
    }
}

/// Greets, and reads the start of the request for all keys.
fn listed(peer: &mut Peer) -> Option<()> {
    peer.greet(false)?;
    peer.read(1)?;
    Some(())
}

fn huge_count(mut peer: Peer) {
    if listed(&mut peer).is_some() {
        peer.send((1_u64 << 60).to_le_bytes());
        peer.flood(&0_u64.to_le_bytes());
    }
}

fn many_keys(mut peer: Peer) {
    if listed(&mut peer).is_some() {
        peer.send(30_000_u64.to_le_bytes());
        let key = [&[0_u8; 0][..], &200_u64.to_le_bytes(), &[b'/'; 200]].concat();
        peer.flood(&key);
    }
}

fn huge_key(mut peer: Peer) {
    if listed(&mut peer).is_some() {
        peer.send(2_u64.to_le_bytes());
        peer.send((1_u64 << 50).to_le_bytes());
        peer.flood(GARBAGE);
    }
}

fn negative_count(mut peer: Peer) {
    if listed(&mut peer).is_some() {
        say(peer, &(-1_i64).to_le_bytes());
    }
}
