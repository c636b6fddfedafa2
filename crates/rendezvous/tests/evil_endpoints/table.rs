//! The table: an endpoint, the client that meets it, and what the client says.

use std::io::Read;
use std::thread;
use std::time::Duration;

use rdzv_rendezvous_proto::coordinator::wire::Event;
use rdzv_store_proto::limits::MAX_REPLY_BYTES;
use rdzv_store_proto::wire::request::Opcode;

use crate::clients::{Client, MAX_REPLY};
use crate::peer::{Peer, Purpose};

/// One endpoint and one client.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) client: Client,
    /// The events of each connection.
    pub(crate) endpoint: fn(Peer),
    /// Parts of what the client says; the address is one of them in every row.
    pub(crate) says: &'static [&'static str],
    /// Most bytes that the client may take.
    pub(crate) most: usize,
}

const fn row(
    client: Client,
    name: &'static str,
    endpoint: fn(Peer),
    says: &'static [&'static str],
) -> Row {
    let most = match client {
        Client::Get | Client::List => MAX_REPLY,
        _ => MAX_REPLY_BYTES,
    };
    Row {
        name,
        client,
        endpoint,
        says,
        most,
    }
}

const GARBAGE: &[u8] = &[0xa5; 4096];

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
    // A coordinator.
    row(
        Client::C10d,
        "silent",
        Peer::hold,
        &["no store answered", "said nothing", "--rdzv-endpoint"],
    ),
    row(
        Client::C10d,
        "HTTP after a whole request",
        http_in_turn,
        &["an HTTP server", "--rdzv-endpoint"],
    ),
    row(Client::C10d, "garbage events", bad_events, &["bad event"]),
    row(
        Client::C10d,
        "a giant event",
        giant_event,
        &["bad event", "1048576"],
    ),
    row(
        Client::C10d,
        "half an event, again and again",
        half_an_event,
        &["can be reached from here"],
    ),
    row(
        Client::C10d,
        "a rank that is not in its world",
        no_place,
        &["rank 7 in a world of 2"],
    ),
    row(
        Client::C10d,
        "endless changes",
        endless_changes,
        &["more than 4096 changes"],
    ),
    row(
        Client::C10d,
        "reset after the handshake",
        reset_after_probe,
        &["reset"],
    ),
    // A store of PyTorch.
    row(
        Client::C10d,
        "a state without end",
        endless_state,
        &["at most 67108864", "--rdzv-endpoint"],
    ),
    row(
        Client::C10d,
        "a state that is none",
        bad_state,
        &["corrupt", "--rdzv-id"],
    ),
    row(Client::C10d, "half a state", half_a_state, &["lost"]),
    // etcd.
    row(
        Client::Etcd,
        "silent",
        Peer::hold,
        &["no answer", "read_timeout"],
    ),
    row(
        Client::Etcd,
        "accepts and closes",
        drop,
        &["--rdzv-endpoint"],
    ),
    row(Client::Etcd, "SSH banner", ssh, &["--rdzv-endpoint"]),
    row(
        Client::Etcd,
        "endless body",
        endless_body,
        &["--rdzv-endpoint"],
    ),
    row(
        Client::Etcd,
        "a body of millions of parts",
        many_parts,
        &["longer than 1048576 parts"],
    ),
    row(
        Client::Etcd,
        "endless headers",
        endless_headers,
        &["--rdzv-endpoint"],
    ),
    row(
        Client::Etcd,
        "endless interim answers",
        endless_interim,
        &["--rdzv-endpoint"],
    ),
    row(
        Client::Etcd,
        "a byte at a time",
        slow_http,
        &["no answer", "read_timeout"],
    ),
    row(
        Client::Etcd,
        "garbage",
        garbage_body,
        &["not an etcd server"],
    ),
    row(
        Client::Etcd,
        "redirect",
        http_redirect,
        &["not an etcd server"],
    ),
    row(
        Client::Etcd,
        "a refusal without end",
        long_refusal,
        &["etcd refuses", "bytes)"],
    ),
    row(
        Client::Etcd,
        "a huge body",
        huge_body,
        &["longer than 67108864 bytes", "--rdzv-endpoint"],
    ),
    row(
        Client::EtcdV2,
        "a huge body",
        huge_body,
        &["longer than 67108864 bytes", "--rdzv-endpoint"],
    ),
    row(
        Client::EtcdV2,
        "endless body",
        endless_body,
        &["--rdzv-endpoint"],
    ),
    row(
        Client::EtcdV2,
        "a body of millions of parts",
        many_parts,
        &["longer than 1048576 parts"],
    ),
    row(
        Client::EtcdV2,
        "garbage",
        garbage_body,
        &["not an etcd server"],
    ),
    row(
        Client::EtcdV2,
        "silent",
        Peer::hold,
        &["no answer", "read_timeout"],
    ),
];

fn say(mut peer: Peer, bytes: &[u8]) {
    peer.send(bytes);
    peer.hold();
}

fn hang_up(mut peer: Peer) {
    let _ = peer.read(10);
}

fn http_at_once(peer: Peer) {
    say(peer, b"HTTP/1.1 400 Bad Request\r\n\r\n");
}

fn http_in_turn(mut peer: Peer) {
    let _ = peer.http_answer("404 Not Found", "");
}

fn http_redirect(mut peer: Peer) {
    let _ = peer.http_answer("301 Moved Permanently", "location: http://example.com/\r\n");
}

fn http2(peer: Peer) {
    say(peer, &[0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 100]);
}

fn tls_alert(peer: Peer) {
    say(peer, &[0x15, 3, 1, 0, 2, 2, 70]);
}

fn ssh(peer: Peer) {
    say(peer, b"SSH-2.0-OpenSSH_9.2p1\r\n");
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

/// Serves the connection of a store as one that never answers; the other one is for `evil`.
fn coordinator(mut peer: Peer, evil: impl FnOnce(Peer)) {
    match peer.greet(true) {
        Some(Purpose::Rendezvous) if peer.read(1).is_some() => evil(peer),
        Some(_) => peer.hold(),
        None => {}
    }
}

fn event(event: &Event) -> Vec<u8> {
    let mut bytes = Vec::new();
    event.write(&mut bytes);
    bytes
}

fn bad_events(peer: Peer) {
    coordinator(peer, |mut peer| peer.flood(&[0xff, 1, 0, 0, 0, 9]));
}

fn giant_event(peer: Peer) {
    coordinator(peer, |mut peer| {
        peer.send([8, 0xff, 0xff, 0xff, 0xff]);
        peer.flood(GARBAGE);
    });
}

fn half_an_event(peer: Peer) {
    coordinator(peer, |mut peer| {
        peer.send([8, 9, 0]);
    });
}

fn formed(rank: u32, world_size: u32) -> Vec<u8> {
    event(&Event::Formed {
        round: 0,
        rank,
        world_size,
        assignment: None,
    })
}

fn no_place(peer: Peer) {
    coordinator(peer, |peer| say(peer, &formed(7, 2)));
}

fn endless_changes(peer: Peer) {
    coordinator(peer, |mut peer| {
        peer.flood(&event(&Event::PeerFailed {
            node: "node".to_owned(),
            reason: "x".repeat(1000),
        }));
    });
}

fn reset_after_probe(peer: Peer) {
    coordinator(peer, Peer::reset);
}

/// Takes the request for the state.
fn asked_for_state(peer: &mut Peer) -> Option<()> {
    peer.greet(false)?;
    // Another connection waits for changes of it.
    (peer.read(1)? == [Opcode::CompareSet as u8]).then_some(())
}

fn endless_state(mut peer: Peer) {
    if asked_for_state(&mut peer).is_some() {
        peer.send((1_u64 << 40).to_le_bytes());
        peer.flood(GARBAGE);
    }
}

fn bad_state(mut peer: Peer) {
    if peer.greet(false).is_none() {
        return;
    }
    // A request comes in one piece.
    let mut request = [0; 4096];
    while let Ok(1..) = peer.stream.read(&mut request) {
        if request[0] == Opcode::CompareSet as u8 {
            peer.send(100_u64.to_le_bytes());
            peer.send([b'?'; 100]);
        }
    }
}

fn half_a_state(mut peer: Peer) {
    if asked_for_state(&mut peer).is_some() {
        peer.send(100_u64.to_le_bytes());
        peer.send([b'?'; 50]);
        // The client may be writing; the end must not overtake what was sent.
        let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        peer.hold();
    }
}

fn endless_body(mut peer: Peer) {
    if peer.http_answer("200 OK", "").is_some() {
        peer.flood(b" ");
    }
}

fn huge_body(mut peer: Peer) {
    if peer
        .http_answer("200 OK", "content-length: 1099511627776\r\n")
        .is_some()
    {
        peer.flood(b" ");
    }
}

fn many_parts(mut peer: Peer) {
    if peer.http_answer("200 OK", "").is_some() {
        let nodes = b"{},".repeat(1 << 20);
        for part in [
            &b"{\"kvs\":["[..],
            &nodes,
            b"{}],\"node\":{\"nodes\":[",
            &nodes,
            b"{}]}}",
        ] {
            peer.send(part);
        }
    }
}

fn endless_headers(mut peer: Peer) {
    if peer.http_request().is_some() {
        peer.send("HTTP/1.1 200 OK\r\n");
        peer.flood(b"x-more: and more\r\n");
    }
}

fn endless_interim(mut peer: Peer) {
    if peer.http_request().is_some() {
        peer.flood(b"HTTP/1.1 102 Processing\r\n\r\n");
    }
}

fn slow_http(mut peer: Peer) {
    if peer
        .http_answer("200 OK", "content-length: 4096\r\n")
        .is_some()
    {
        peer.drip(GARBAGE, Duration::from_millis(50));
    }
}

fn garbage_body(mut peer: Peer) {
    if peer.http_answer("200 OK", "").is_some() {
        peer.send(GARBAGE);
    }
}

fn long_refusal(mut peer: Peer) {
    if peer.http_answer("400 Bad Request", "").is_some() {
        peer.send("{\"code\":3,\"message\":\"");
        for _ in 0..1024 {
            peer.send([b'x'; 1024]);
        }
        peer.send("\"}");
        // Read before the end is seen, or not: both are in order.
        thread::yield_now();
    }
}
