//! Attacks with bytes that are not frames, and frames without a meaning.

use std::time::Duration;

use rdzv_rpc_proto::frame::release::{self, ReleasedPart};
use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::peer::{call, frame, hello};
use super::{Attack, Attacker, MIB, attack};

const PEAK: usize = 16 * MIB;

pub(super) const ATTACKS: &[Attack] = &[
    attack("other protocols", PEAK, |attacker| {
        let first: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"SSH-2.0-OpenSSH_9\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            &[0; 200],
        ];
        first.iter().for_each(|bytes| say(attacker, bytes));
    }),
    attack(
        "noise, before saying who it is and after",
        PEAK,
        |attacker| {
            let mut random = fastrand::Rng::with_seed(7);
            for round in 0..100 {
                let mut noise = vec![0; 4096];
                random.fill(&mut noise);
                match round % 2 {
                    0 => say(attacker, &noise),
                    _ => join(attacker, &noise),
                }
            }
        },
    ),
    attack("calls before saying who it is", PEAK, |attacker| {
        say(attacker, &frame(&call(1, "victim.nothing"), &[0; 4], &[]));
    }),
    attack("saying twice who it is", PEAK, |attacker| {
        let hello = hello(attacker.target.token.is_some()).to_bytes();
        let hello = frame(&Header::new(FrameKind::Hello), &hello, &[]);
        say(attacker, &hello.repeat(2));
        join(attacker, &hello);
    }),
    attack("a first frame of a megabyte", PEAK, |attacker| {
        let hello = frame(&Header::new(FrameKind::Hello), &vec![7; MIB], &[]);
        (0..20).for_each(|_| say(attacker, &hello));
    }),
    attack(
        "frames of every kind, with nothing and with noise",
        PEAK,
        |attacker| {
            for kind in FrameKind::ALL {
                for body in [&[][..], &[0xff; 100]] {
                    join(attacker, &frame(&Header::new(kind), body, &[]).repeat(100));
                }
            }
        },
    ),
    attack("bodies that are nested a million deep", PEAK, |attacker| {
        join(attacker, &frame(&call(1, "victim.take"), &[1; MIB], &[]));
    }),
    attack(
        "lists that claim to have any number of elements",
        PEAK,
        |attacker| {
            let mut all = Vec::new();
            for (number, zeros) in (0..10).enumerate() {
                let mut body = vec![0; 4];
                body.extend([0xff; 9]);
                body.push(1);
                body.extend(vec![0; zeros * 100]);
                all.extend(frame(
                    &call(number as u64, "victim.stall_tensors"),
                    &body,
                    &[],
                ));
            }
            join(attacker, &all);
        },
    ),
    attack("giving back what it has not borrowed", PEAK, |attacker| {
        let parts: Vec<ReleasedPart> = (0..10_000)
            .map(|arena| ReleasedPart {
                arena,
                generation: 7,
            })
            .collect();
        let body = release::to_bytes(&parts);
        join(
            attacker,
            &frame(&Header::new(FrameKind::Release), &body, &[]).repeat(100),
        );
    }),
    attack("cancelling calls that were never made", PEAK, |attacker| {
        let mut all = Vec::new();
        for call in 0..100_000 {
            let header = Header {
                call,
                ..Header::new(FrameKind::Cancel)
            };
            all.extend(frame(&header, &[], &[]));
        }
        join(attacker, &all);
    }),
    attack(
        "remote values whose calls cannot be read",
        PEAK,
        |attacker| {
            let mut all = Vec::new();
            for number in 0..1000 {
                for method in ["rdzv.rref.create", "rdzv.rref.fetch"] {
                    all.extend(frame(&call(number, method), &[0xff; 50], &[]));
                }
            }
            join(attacker, &all);
        },
    ),
];

/// Connects and sends these bytes.
fn say(attacker: &mut Attacker, bytes: &[u8]) {
    if let Some(mut peer) = attacker.target.dial() {
        peer.send(bytes);
        attacker.peers.push(peer);
    }
}

/// Joins, sends these bytes, and reads the answers.
fn join(attacker: &mut Attacker, bytes: &[u8]) {
    if let Some(mut peer) = attacker.target.join() {
        peer.send(bytes);
        peer.drain(Duration::from_millis(50));
        attacker.peers.push(peer);
    }
}
