//! Attacks with lengths that are announced and bytes that never arrive.

use rdzv_rpc_proto::frame::{FrameKind, Header, PartHead, PartLocation, decoder};

use super::peer::{Peer, body, call, frame, unix};
use super::{Attack, Attacker, MIB, attack};

/// Number of peers in one attack.
const MANY: usize = 150;

/// Bytes that each of these peers sends.
const SENT: usize = 10_000;

/// Maximum bytes to reserve per connection beyond the received bytes.
/// The first part is for a body or a part, the second for frames.
const AHEAD: usize = decoder::AHEAD + 64 * 1024;

const LARGE: u64 = (4 << 30) - 4096;

pub(super) const ATTACKS: &[Attack] = &[
    attack("a part of 4 GiB is announced", AHEAD, |attacker| {
        announced(attacker, 1, &[PartHead::inline(LARGE)], 0);
    }),
    attack(
        "150 peers announce a part of 4 GiB and send 10 KB",
        MANY * (SENT + AHEAD),
        |attacker| announced(attacker, MANY, &[PartHead::inline(LARGE)], SENT),
    ),
    attack(
        "half of a part of 4 MiB, of 40 peers",
        40 * (2 * 2 * MIB + AHEAD),
        |attacker| announced(attacker, 40, &[PartHead::inline(4 * MIB as u64)], 2 * MIB),
    ),
    attack(
        "65535 parts of 65536 bytes are announced",
        16 * MIB,
        |attacker| announced(attacker, 1, &vec![PartHead::inline(65_536); 65_535], SENT),
    ),
    attack(
        "150 peers announce a body of 64 MiB and send 10 KB",
        MANY * (SENT + AHEAD),
        |attacker| {
            for _ in 0..MANY {
                if let Some(mut peer) = attacker.target.join() {
                    let mut begun = frame(&call(1, "victim.take"), &[7; SENT], &[]);
                    begun[56..60].copy_from_slice(&(64_u32 << 20).to_le_bytes());
                    peer.send(&begun);
                    attacker.peers.push(peer);
                }
            }
        },
    ),
    attack(
        "a part of 4 GiB in the memory of the sender, over TCP",
        AHEAD,
        |attacker| {
            let peer = attacker.target.join();
            read_out(attacker, peer, LARGE);
        },
    ),
    attack(
        "a part of 4 GiB in the memory of the sender that is not there",
        AHEAD,
        |attacker| {
            let peer = attacker.target.join_over(&unix());
            read_out(attacker, peer, LARGE);
        },
    ),
    attack("parts in arenas that are not there", AHEAD, |attacker| {
        if let Some(mut peer) = attacker.target.join() {
            let part = PartHead {
                location: PartLocation::Arena {
                    arena: 1,
                    generation: 1,
                    offset: 0,
                },
                length: LARGE,
            };
            peer.send(&frame(&call(1, "victim.take"), &body(&()), &[part]));
            attacker.peers.push(peer);
        }
    }),
];

/// Announces parts, and sends `sent` bytes of them.
fn announced(attacker: &mut Attacker, peers: usize, parts: &[PartHead], sent: usize) {
    for _ in 0..peers {
        if let Some(mut peer) = attacker.target.join() {
            peer.send(&frame(&call(1, "victim.stall_tensors"), &body(&()), parts));
            peer.send(&vec![7; sent]);
            attacker.peers.push(peer);
        }
    }
}

/// Makes the victim try to read a part at an unmapped address of this process.
fn read_out(attacker: &mut Attacker, peer: Option<Peer>, length: u64) {
    let Some(mut peer) = peer else { return };
    let shown = rdzv_shm::remote_read::Witness::new().unwrap();
    let claim = shown.claim();
    let ping = postcard::to_stdvec(&(claim.address, claim.nonce, true)).unwrap();
    peer.send(&frame(&Header::new(FrameKind::Ping), &ping, &[]));
    peer.next(FrameKind::Pong);
    let part = PartHead {
        location: PartLocation::Process { address: 4096 },
        length,
    };
    for number in 0..20 {
        peer.send(&frame(&call(number, "victim.take"), &body(&()), &[part]));
    }
    attacker.peers.push(peer);
}
