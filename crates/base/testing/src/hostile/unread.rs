//! Attacks with replies that the client does not read.

use super::{Attack, request};

const MIB: usize = 1 << 20;

pub(super) const ATTACKS: &[Attack] = &[
    Attack {
        name: "many values in one request, unread",
        run: |attacker| {
            attacker.prepare(&request::set("/k", [7; 16_000]));
            attacker.flood(false, 1, |_| {
                request::multi_get((0..30_000).map(|_| "/k".to_owned()))
            });
        },
    },
    Attack {
        name: "large values, unread",
        run: |attacker| {
            attacker.prepare(&request::set("/k", vec![7; 4 * MIB]));
            attacker.flood(false, 1, |_| request::get("/k").repeat(1000));
        },
    },
    Attack {
        name: "all keys, unread",
        run: |attacker| {
            attacker.prepare(&request::multi_set(
                (0..20_000).map(|key| format!("/k/{key}")),
                b"",
            ));
            attacker.flood(false, 1, |_| request::LIST_KEYS.repeat(10_000));
        },
    },
    Attack {
        name: "pings, unread",
        run: |attacker| attacker.flood(false, 400, |n| request::ping(n as u32).repeat(10_000)),
    },
    Attack {
        name: "counts, unread",
        run: |attacker| attacker.flood(false, 200, |_| request::NUM_KEYS.repeat(10_000)),
    },
    Attack {
        name: "queue entries, unread",
        run: |attacker| {
            attacker.flood(false, 6, |_| request::push("/q", vec![7; MIB]));
            attacker.flood(false, 1, |_| request::pop("/q").repeat(10_000));
        },
    },
    Attack {
        name: "comparisons, unread",
        run: |attacker| {
            attacker.prepare(&request::set("/c", [7; 15_000]));
            attacker.flood(false, 1, |_| {
                request::compare_set("/c", "x", "y").repeat(3000)
            });
        },
    },
    Attack {
        name: "many readers that stop reading",
        run: |attacker| {
            attacker.prepare(&request::set("/k", [7; 16_000]));
            for _ in 0..50 {
                attacker.flood(false, 1, |_| request::get("/k").repeat(500));
            }
        },
    },
    Attack {
        name: "a reply that is read little by little",
        run: |attacker| {
            attacker.prepare(&request::set("/k", vec![7; 2 * MIB]));
            let Some(mut peer) = attacker.join() else {
                return;
            };
            peer.send(&request::get("/k").repeat(3));
            for step in 1..20 {
                peer.take_at_least(step * 1000);
            }
            attacker.keep(peer);
        },
    },
];
