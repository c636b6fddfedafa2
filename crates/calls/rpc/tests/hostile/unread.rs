//! Attacks that never read the answers, or never return their parts.

use std::time::Duration;

use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::peer::{Peer, body, call, frame, request, unix};
use super::{Attack, Attacker, MIB, WINDOW, attack};

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "replies of a MiB that the caller never reads",
        WINDOW + MIB,
        |attacker| unread(attacker, 1000, |n| give(n, "victim.give", MIB)),
    ),
    attack(
        "replies of a MiB that the caller never reads, of a function that blocks",
        WINDOW + 4 * MIB,
        |attacker| unread(attacker, 1000, |n| give(n, "victim.give_blocking", MIB)),
    ),
    attack(
        "replies of 60 KB that the caller never reads",
        WINDOW + WINDOW / 2,
        |attacker| unread(attacker, 17_000, |n| give(n, "victim.give", 60_000)),
    ),
    attack(
        "small replies that the caller never reads",
        2 * WINDOW,
        |attacker| unread(attacker, 1_000_000, |n| request(n, "victim.take", 1)),
    ),
    attack(
        "errors that the caller never reads",
        2 * WINDOW,
        |attacker| unread(attacker, 500_000, |n| request(n, "victim.missing", 1)),
    ),
    attack(
        "pings whose answers the caller never reads",
        2 * WINDOW,
        |attacker| {
            let ping = frame(&Header::new(FrameKind::Ping), &[], &[]);
            unread(attacker, 1_000_000, |_| ping.clone());
        },
    ),
    attack(
        "replies that are lent and never given back",
        WINDOW + 4 * MIB,
        |attacker| {
            if let Some(mut peer) = attacker.target.join_over(&unix()) {
                let claim = (0_u64, [0_u8; 16], true);
                let ping = postcard::to_stdvec(&claim).unwrap();
                peer.send(&frame(&Header::new(FrameKind::Ping), &ping, &[]));
                peer.next(FrameKind::Pong);
                let all = |n| {
                    let header = Header {
                        // The flag says that the caller reads memory.
                        flags: 1,
                        ..call(n, "victim.give")
                    };
                    frame(&header, &body(&MIB), &[])
                };
                for number in 0..1000 {
                    if !peer.send(&all(number)) || peer.next(FrameKind::Reply).is_none() {
                        break;
                    }
                }
                attacker.peers.push(peer);
            }
        },
    ),
    attack(
        "peers that leave with everything unanswered",
        2 * WINDOW,
        |attacker| {
            for _ in 0..4 {
                unread(attacker, 300, |n| give(n, "victim.give_blocking", MIB));
                attacker.peers.clear();
            }
        },
    ),
];

fn give(number: u64, method: &str, length: usize) -> Vec<u8> {
    frame(&call(number, method), &body(&length), &[])
}

/// Sends up to `times` requests over one connection, and reads no answers.
fn unread(attacker: &mut Attacker, times: u64, request: impl Fn(u64) -> Vec<u8>) {
    let Some(mut peer) = attacker.target.join() else {
        return;
    };
    send(&mut peer, times, request);
    // The worker makes the answers during this time.
    peer.stay(Duration::from_secs(1));
    attacker.peers.push(peer);
}

fn send(peer: &mut Peer, times: u64, request: impl Fn(u64) -> Vec<u8>) {
    let mut together = Vec::new();
    for number in 0..times {
        together.extend(request(number));
        if together.len() > 16 * 1024 {
            if !peer.send(&together) {
                return;
            }
            together.clear();
        }
    }
    peer.send(&together);
}
