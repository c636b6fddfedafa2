//! Attacks with bytes that are not frames, and frames without a meaning.

use std::time::Duration;

use rdzv_rpc_proto::frame::release::{self, ReleasedPart};
use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::peer::{call, frame, hello};
use super::{Attack, Attacker, MIB};

const PEAK: usize = 16 * MIB;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "other protocols",
        run: |attacker| {
            let first: [&[u8]; 4] = [
                b"GET / HTTP/1.1\r\n\r\n",
                b"SSH-2.0-OpenSSH_9\r\n",
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                &[0; 200],
            ];
            first.iter().for_each(|bytes| say(attacker, bytes));
        },
        peak: PEAK,
    },
    Attack {
        name: "noise, before saying who it is and after",
        run: |attacker| {
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
        peak: PEAK,
    },
    Attack {
        name: "calls before saying who it is",
        run: |attacker| say(attacker, &frame(&call(1, "victim.nothing"), &[0; 4], &[])),
        peak: PEAK,
    },
    Attack {
        name: "saying twice who it is",
        run: |attacker| {
            let hello = hello(attacker.target.token.is_some()).to_bytes();
            let hello = frame(&Header::new(FrameKind::Hello), &hello, &[]);
            say(attacker, &hello.repeat(2));
            join(attacker, &hello);
        },
        peak: PEAK,
    },
    Attack {
        name: "a first frame of a megabyte",
        run: |attacker| {
            let hello = frame(&Header::new(FrameKind::Hello), &vec![7; MIB], &[]);
            (0..20).for_each(|_| say(attacker, &hello));
        },
        peak: PEAK,
    },
    Attack {
        name: "frames of every kind, with nothing and with noise",
        run: |attacker| {
            for kind in FrameKind::ALL {
                for body in [&[][..], &[0xff; 100]] {
                    join(attacker, &frame(&Header::new(kind), body, &[]).repeat(100));
                }
            }
        },
        peak: PEAK,
    },
    Attack {
        name: "bodies that are nested a million deep",
        run: |attacker| join(attacker, &frame(&call(1, "victim.take"), &[1; MIB], &[])),
        peak: PEAK,
    },
    Attack {
        name: "lists that claim to have any number of elements",
        run: |attacker| {
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
        peak: PEAK,
    },
    Attack {
        name: "giving back what it has not borrowed",
        run: |attacker| {
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
        },
        peak: PEAK,
    },
    Attack {
        name: "cancelling calls that were never made",
        run: |attacker| {
            let mut all = Vec::new();
            for call in 0..100_000 {
                let header = Header {
                    call,
                    ..Header::new(FrameKind::Cancel)
                };
                all.extend(frame(&header, &[], &[]));
            }
            join(attacker, &all);
        },
        peak: PEAK,
    },
    Attack {
        name: "remote values whose calls cannot be read",
        run: |attacker| {
            let mut all = Vec::new();
            for number in 0..1000 {
                for method in ["rdzv.rref.create", "rdzv.rref.fetch"] {
                    all.extend(frame(&call(number, method), &[0xff; 50], &[]));
                }
            }
            join(attacker, &all);
        },
        peak: PEAK,
    },
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
