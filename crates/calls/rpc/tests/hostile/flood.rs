//! Attacks with more calls than a worker may make at the same time.

use rdzv_rpc_proto::frame::{FrameKind, Header, PartHead};

use super::peer::{Peer, call, frame, request, text};
use super::{Attack, Attacker, MIB, WINDOW, attack};

/// Flag of a request: the first 8 bytes of the body are the key of its line.
const IN_LINE: u16 = 2;

/// Flag of a request: it belongs to another call.
const NESTED: u16 = 4;

/// Maximum memory of nested calls, in addition to the window.
const OF_OTHERS: usize = 256 * MIB;

/// Number of bytes in one flood.
const FLOOD: usize = 300 * MIB;

/// Maximum memory of calls without their bytes.
const CALLS: usize = 48 * MIB;

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "calls of a function that blocks, 100 KB each",
        WINDOW + MIB,
        |attacker| flood(attacker, 100_000, |n| request(n, "victim.block", 100_000)),
    ),
    attack(
        "calls of a function that waits, 100 KB each",
        2 * WINDOW,
        |attacker| flood(attacker, 100_000, |n| request(n, "victim.stall", 100_000)),
    ),
    attack(
        "calls of a function that waits, a MiB each",
        3 * WINDOW,
        |attacker| flood(attacker, MIB, |n| request(n, "victim.stall", MIB)),
    ),
    attack(
        "calls of a function that blocks, tensors of a MiB",
        WINDOW + WINDOW / 2,
        |attacker| flood(attacker, MIB, |n| tensor(n, "victim.block_tensors", MIB)),
    ),
    attack(
        "calls of a function that waits, tensors of a MiB",
        WINDOW + WINDOW / 2,
        |attacker| flood(attacker, MIB, |n| tensor(n, "victim.stall_tensors", MIB)),
    ),
    attack("small calls of a function that waits", CALLS, |attacker| {
        flood(attacker, 5000, |n| request(n, "victim.stall", 10));
    }),
    attack("small calls of a function that blocks", CALLS, |attacker| {
        flood(attacker, 5000, |n| request(n, "victim.block", 10));
    }),
    attack(
        "calls that claim to be parts of others, 100 KB each",
        WINDOW + OF_OTHERS,
        |attacker| flood(attacker, 100_000, |n| flagged(n, NESTED, 100_000)),
    ),
    attack(
        "small calls that claim to be parts of others",
        CALLS,
        |attacker| flood(attacker, 5000, |n| flagged(n, NESTED, 10)),
    ),
    attack("calls in one line", WINDOW + MIB, |attacker| {
        flood(attacker, 100_000, |n| flagged(n, IN_LINE, 100_000));
    }),
    attack("calls with one number", 2 * WINDOW, |attacker| {
        flood(attacker, 100_000, |_| request(1, "victim.stall", 100_000));
    }),
    attack(
        "calls that are cancelled immediately, of a function that blocks",
        WINDOW + MIB,
        |attacker| {
            flood(attacker, 100_000, |number| {
                let cancel = Header {
                    call: number,
                    ..Header::new(FrameKind::Cancel)
                };
                let mut both = request(number, "victim.block", 100_000);
                both.extend(frame(&cancel, &[], &[]));
                both
            });
        },
    ),
    attack(
        "calls whose time is over immediately, of a function that blocks",
        WINDOW + MIB,
        |attacker| {
            flood(attacker, 100_000, |number| {
                let header = Header {
                    deadline_micros: 1,
                    ..call(number, "victim.block")
                };
                frame(&header, &text(100_000), &[])
            });
        },
    ),
    attack("calls of a method that is not there", MIB, |attacker| {
        flood(attacker, 100_000, |n| request(n, "victim.missing", 100_000));
    }),
    attack(
        "peers that come, call and leave",
        2 * WINDOW + WINDOW / 2,
        |attacker| {
            for _ in 0..4 {
                flood(attacker, 10 * MIB, |n| {
                    tensor(n, "victim.block_tensors", 10 * MIB)
                });
                attacker.peers.clear();
            }
        },
    ),
];

/// Sends `FLOOD / size` calls over one connection.
/// It stops earlier if the worker reads no more.
fn flood(attacker: &mut Attacker, size: usize, request: impl Fn(u64) -> Vec<u8>) {
    if let Some(mut peer) = attacker.target.join() {
        send_all(&mut peer, size, request);
        attacker.peers.push(peer);
    }
}

fn send_all(peer: &mut Peer, size: usize, request: impl Fn(u64) -> Vec<u8>) {
    for number in 0..(FLOOD / size) as u64 {
        if !peer.send(&request(number)) {
            break;
        }
    }
}

fn flagged(number: u64, flags: u16, length: usize) -> Vec<u8> {
    let header = Header {
        flags,
        ..call(number, "victim.stall")
    };
    let mut argument = text(length);
    if flags & IN_LINE != 0 {
        argument.splice(0..0, [1; 8]);
    }
    frame(&header, &argument, &[])
}

/// Creates a call with a tensor of this length.
fn tensor(number: u64, method: &str, length: usize) -> Vec<u8> {
    let tensor = rdzv_rpc::Tensor::from_vec(vec![7_u8; length], [length]).unwrap();
    let callee = super::peer::hello(false).worker;
    let mut outgoing = rdzv_rpc::message::Outgoing::request(&callee);
    let payload = rdzv_rpc::message::encode(&vec![tensor], &mut outgoing).unwrap();
    let parts: Vec<PartHead> = payload
        .parts
        .iter()
        .map(|part| PartHead::inline(part.len() as u64))
        .collect();
    let mut bytes = frame(&call(number, method), &payload.body, &parts);
    payload
        .parts
        .iter()
        .for_each(|part| bytes.extend_from_slice(part));
    bytes
}
