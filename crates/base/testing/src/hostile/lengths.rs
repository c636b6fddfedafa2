//! Attacks with bytes that are not requests.

use super::{Attack, Attacker, attack, request};

pub(super) const ATTACKS: &[Attack] = &[
    attack("a key of any length", |attacker| {
        lengths(attacker, |length| {
            [vec![0x03], request::length(length)].concat()
        });
    }),
    attack("a value of any length", |attacker| {
        lengths(attacker, |length| request::set_head("/k", length));
    }),
    attack("a list of any length", |attacker| {
        for opcode in [0x05, 0x06, 0x0a, 0x0b] {
            lengths(attacker, |length| {
                [vec![opcode], request::length(length)].concat()
            });
        }
    }),
    attack("a list with a key of any length", |attacker| {
        lengths(attacker, |length| {
            [
                vec![0x0a],
                request::length(2),
                request::bytes("/k"),
                request::length(length),
            ]
            .concat()
        });
    }),
    attack("a request of ours of any length", |attacker| {
        lengths(attacker, |length| {
            [vec![0x20], request::length(length)].concat()
        });
    }),
    attack("every opcode with nothing, and with ones", |attacker| {
        for opcode in 0..=u8::MAX {
            attacker.flood(true, 1, |_| vec![opcode]);
            attacker.flood(true, 1, |_| [vec![opcode], vec![0xff; 100]].concat());
        }
    }),
    attack("the first request twice", |attacker| {
        attacker.flood(true, 1, |_| request::validate());
    }),
    attack("other protocols", |attacker| {
        let first: [&[u8]; 4] = [
            b"GET / HTTP/1.1\r\n\r\n",
            b"SSH-2.0-OpenSSH_9\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"\x00\x00\x00\x00\x00\x00\x00\x00",
        ];
        for bytes in first {
            if let Some(mut peer) = attacker.connect() {
                peer.send(bytes);
                attacker.keep(peer);
            }
        }
    }),
    attack("noise", |attacker| {
        // A linear congruential generator: the same noise in every run.
        let mut state = 1_u64;
        for _ in 0..200 {
            attacker.flood(true, 1, |_| {
                let noise = (0..500).map(|_| {
                    state = state
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (state >> 56) as u8 & 0x1f
                });
                noise.collect()
            });
        }
    }),
];

/// Sends a request for each length near a limit.
fn lengths(attacker: &mut Attacker, request: impl Fn(u64) -> Vec<u8>) {
    let borders = [8192, 8 << 20, 131_072, 1 << 31, 1 << 32, 1 << 62, 1 << 63];
    for border in borders.into_iter().chain([u64::MAX]) {
        for length in [border - 1, border, border.saturating_add(1)] {
            attacker.flood(false, 1, |_| request(length));
        }
    }
}
