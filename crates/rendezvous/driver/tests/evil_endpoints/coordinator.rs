//! Endpoints for an agent's c10d rendezvous: a coordinator and a PyTorch store.

use std::io::Read;

use rdzv_rendezvous_proto::coordinator::wire::Event;
use rdzv_store_proto::wire::request::Opcode;

use crate::peer::{Peer, Purpose};
use crate::table::{GARBAGE, Row, c10d, http_in_turn, say};

pub(crate) const ROWS: &[Row] = &[
    // A coordinator.
    c10d(
        "silent",
        Peer::hold,
        &["no store answered", "sent nothing", "--rdzv-endpoint"],
    ),
    c10d(
        "HTTP after a whole request",
        http_in_turn,
        &["an HTTP server", "--rdzv-endpoint"],
    ),
    c10d("garbage events", bad_events, &["bad event"]),
    c10d("a giant event", giant_event, &["bad event", "1048576"]),
    c10d(
        "half an event, again and again",
        half_an_event,
        &["reachable from this host"],
    ),
    c10d(
        "a rank that is not in its world",
        no_rank,
        &["rank 7 in a world of size 2"],
    ),
    c10d(
        "endless changes",
        endless_changes,
        &["more than 4096 changes"],
    ),
    c10d("reset after the handshake", reset_after_probe, &["reset"]),
    // A PyTorch store.
    c10d(
        "a state without end",
        endless_state,
        &["limit of 67108864", "--rdzv-endpoint"],
    ),
    c10d("a state that is none", bad_state, &["corrupt", "--rdzv-id"]),
    c10d("half a state", half_a_state, &["lost"]),
];

/// Serves the store connection without answers; `evil` gets the other one.
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
        replaced: Vec::new(),
    })
}

fn no_rank(peer: Peer) {
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

/// Greets, and reads the start of the request for the state.
fn asked_for_state(peer: &mut Peer) -> Option<()> {
    peer.greet(false)?;
    // Another connection waits for changes of the state.
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
    // A request arrives in one piece.
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
        // The client may be writing; the end must not overtake the data.
        let _ = peer.stream.shutdown(std::net::Shutdown::Write);
        peer.hold();
    }
}
