//! Endpoints for a client of a store.

use std::time::Duration;

use crate::clients::Client;
use crate::peer::Peer;
use crate::table::{GARBAGE, Row, http_in_turn, http_redirect, row, say, ssh};

pub(crate) const ROWS: &[Row] = &[
    // Instead of an answer to the preamble.
    row(
        Client::Get,
        "silent",
        Peer::hold,
        &["said nothing", "address and port"],
    ),
    row(
        Client::Get,
        "accepts and closes",
        hang_up,
        &["closed the connection"],
    ),
    row(
        Client::Get,
        "resets",
        Peer::reset,
        &["talk to", "check the address"],
    ),
    row(
        Client::Get,
        "HTTP at once",
        http_at_once,
        &["an HTTP server", "400"],
    ),
    row(
        Client::Get,
        "HTTP after a whole request",
        http_in_turn,
        &["an HTTP server", "404"],
    ),
    row(
        Client::Get,
        "redirect",
        http_redirect,
        &["an HTTP server", "301"],
    ),
    row(Client::Get, "HTTP/2 settings", http2, &["HTTP/2 or gRPC"]),
    row(
        Client::Get,
        "TLS alert",
        tls_alert,
        &["a TLS server", "plain"],
    ),
    row(
        Client::Get,
        "SSH banner",
        ssh,
        &["an SSH server", "OpenSSH"],
    ),
    row(Client::Get, "mail banner", mail, &["a mail or FTP server"]),
    row(Client::Get, "endless banner", endless, &["it answered"]),
    row(
        Client::Get,
        "another nonce",
        another_nonce,
        &["it answered"],
    ),
    row(Client::Get, "half a nonce", half_a_nonce, &["2 of 4 bytes"]),
    // After a good handshake.
    row(
        Client::Get,
        "endless value",
        endless_value,
        &["get key /key", "at most 1048576", "max_reply_bytes"],
    ),
    row(
        Client::Get,
        "negative length",
        negative_length,
        &["get key /key", "impossible length -1"],
    ),
    row(
        Client::Get,
        "half a value, then the end",
        half_a_value,
        &["get key /key", "closed the connection"],
    ),
    row(
        Client::Get,
        "half a value, then silence",
        stuck_value,
        &["get key /key", "did not answer"],
    ),
    row(
        Client::Get,
        "a byte at a time",
        slow_value,
        &["get key /key", "did not answer"],
    ),
    row(
        Client::Get,
        "a wrong end of the wait",
        wrong_release,
        &["key", "0x07"],
    ),
    row(
        Client::Get,
        "reset in the value",
        reset_in_value,
        &["get key /key", "closed the connection"],
    ),
    row(
        Client::List,
        "a huge count",
        huge_count,
        &["list key", "at most 1048576", "max_reply_bytes"],
    ),
    row(
        Client::List,
        "a count that is too small for what follows",
        many_keys,
        &["list key", "at most 1048576"],
    ),
    row(
        Client::List,
        "a huge key",
        huge_key,
        &["list key", "at most 1048576"],
    ),
    row(
        Client::List,
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

/// Takes the request for all keys.
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
