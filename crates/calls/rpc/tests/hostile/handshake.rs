//! Attacks by peers that connect and do not identify themselves.

use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::peer::{frame, hello};
use super::{Attack, Attacker, MIB};

/// Number of peers: more than a worker keeps without identification.
const MANY: usize = 1100;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "1100 peers that say nothing",
        run: |attacker| each(attacker, MANY, &[]),
        peak: 8 * MIB,
    },
    Attack {
        name: "1100 peers that stop in the middle of their first frame",
        run: |attacker| each(attacker, MANY, b"rdzc"),
        peak: 96 * MIB,
    },
    Attack {
        name: "1100 peers that say who they are and then stop",
        run: |attacker| {
            for _ in 0..MANY {
                let hello = hello(attacker.target.token.is_some()).to_bytes();
                let hello = frame(&Header::new(FrameKind::Hello), &hello, &[]);
                each(attacker, 1, &hello);
            }
        },
        peak: 96 * MIB,
    },
    Attack {
        name: "2000 peers that leave immediately",
        run: |attacker| (0..2000).for_each(|_| drop(attacker.target.dial())),
        peak: 8 * MIB,
    },
];

/// Opens connections, sends the same bytes over each, and keeps them open.
fn each(attacker: &mut Attacker, peers: usize, said: &[u8]) {
    for _ in 0..peers {
        if let Some(mut peer) = attacker.target.dial() {
            peer.send(said);
            attacker.peers.push(peer);
        }
    }
}
