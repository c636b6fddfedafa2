//! Attacks by peers that connect and do not complete the greeting.

use rdzv_rpc_proto::frame::{FrameKind, Header};

use super::peer::{frame, hello};
use super::{Attack, Attacker, MIB, attack};

/// Number of peers: more than a worker keeps without identification.
const MANY: usize = 1100;

pub(super) const ATTACKS: &[Attack] = &[
    attack("1100 peers that say nothing", 8 * MIB, |attacker| {
        each(attacker, MANY, &[]);
    }),
    attack(
        "1100 peers that stop in the middle of their first frame",
        96 * MIB,
        |attacker| each(attacker, MANY, b"rdzc"),
    ),
    attack(
        "1100 peers that say who they are and then stop",
        96 * MIB,
        |attacker| {
            for _ in 0..MANY {
                let hello = hello(attacker.target.token.is_some()).to_bytes();
                let hello = frame(&Header::new(FrameKind::Hello), &hello, &[]);
                each(attacker, 1, &hello);
            }
        },
    ),
    attack("2000 peers that leave immediately", 8 * MIB, |attacker| {
        (0..2000).for_each(|_| drop(attacker.target.dial()));
    }),
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
