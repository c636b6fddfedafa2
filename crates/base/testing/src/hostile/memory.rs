//! Attacks on memory: stored data, and data of unfinished requests.

use super::{Attack, Attacker, attack, request};

const MIB: usize = 1 << 20;

pub(super) const ATTACKS: &[Attack] = &[
    attack("fill with small values", |attacker| {
        attacker.flood(false, 120_000, |n| {
            request::set(format!("/s/{n}"), [7; 1000])
        });
    }),
    attack("fill with large values", |attacker| {
        attacker.flood(false, 20, |n| {
            request::set(format!("/l/{n}"), vec![7; 7 * MIB])
        });
    }),
    attack("fill with empty values", |attacker| {
        attacker.flood(false, 200_000, |n| request::set(format!("/e/{n}"), ""));
    }),
    attack("fill one value by appending", |attacker| {
        attacker.flood(false, 100, |_| request::append("/one", vec![7; MIB]));
    }),
    attack("fill by comparing and setting", |attacker| {
        attacker.flood(true, 2000, |n| {
            request::compare_set(&format!("/c/{n}"), "", vec![7; 60_000])
        });
    }),
    attack("fill by adding to new keys", |attacker| {
        attacker.flood(true, 100_000, |n| request::add(&format!("/a/{n}"), 1));
    }),
    attack("fill one queue", |attacker| {
        attacker.flood(false, 100_000, |_| request::push("/q", [7; 1000]));
    }),
    attack("fill many queues", |attacker| {
        attacker.flood(false, 200_000, |n| request::push(&format!("/q/{n}"), ""));
    }),
    attack("fill with many keys per request", |attacker| {
        attacker.flood(false, 3, |n| {
            request::multi_set((0..60_000).map(|key| format!("/m/{n}/{key}")), &[7; 200])
        });
    }),
    attack("fill, leave and come back", |attacker| {
        for round in 0..12 {
            if let Some(mut peer) = attacker.join() {
                let fill = |n| request::set(format!("/f/{round}/{n}"), vec![7; MIB]);
                let _ = (0..64).take_while(|n| peer.send(&fill(*n))).count();
            }
        }
    }),
    attack("stop in the middle of large values", |attacker| {
        for number in 0..40 {
            let begun = [
                request::set_head(&format!("/h/{number}"), 8 * MIB as u64),
                vec![7; MIB],
            ];
            attacker.flood(false, 1, |_| begun.concat());
        }
    }),
    attack("stop in the middle of long lists", |attacker| {
        for opcode in [0x05, 0x06, 0x0a, 0x0b] {
            let mut begun = [vec![opcode], request::length(131_072)].concat();
            begun.extend((0..4 * MIB / 4096).flat_map(|_| request::bytes([b'k'; 4088])));
            attacker.flood(false, 1, |_| begun.clone());
        }
    }),
    attack("overwrite values that are being read", overwrite_while_read),
];

/// Makes each reader hold an old version of the value.
/// The store no longer contains that version.
fn overwrite_while_read(attacker: &mut Attacker) {
    let Some(mut writer) = attacker.join() else {
        return;
    };
    for version in 0..40 {
        if !writer.send(&request::set("/v", vec![version; 8 * MIB])) {
            break;
        }
        // The answer shows that the server has stored the value.
        writer.send(request::NUM_KEYS);
        writer.take_at_least(8 * (usize::from(version) + 1));
        attacker.flood(false, 1, |_| request::get("/v"));
    }
    attacker.keep(writer);
}
