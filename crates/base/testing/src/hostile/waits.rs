//! Attacks with waits and barriers.

use super::{Attack, Attacker, attack, request};

pub(super) const ATTACKS: &[Attack] = &[
    attack("wait for many keys", |attacker| {
        attacker.flood(false, 4, |n| request::wait(keys(n, 30_000)));
    }),
    attack("wait for many keys and cancel", |attacker| {
        attacker.flood(true, 4, |n| {
            [&request::wait(keys(n, 30_000))[..], request::CANCEL_WAIT].concat()
        });
    }),
    attack("wait for many keys and leave", |attacker| {
        for number in 0..4 {
            if let Some(mut peer) = attacker.join() {
                peer.send(&request::wait(keys(number, 30_000)));
                peer.reset();
            }
        }
    }),
    attack("wait often on one connection", |attacker| {
        attacker.flood(false, 50_000, |_| wait_for("/never"));
    }),
    attack("barriers on one key", |attacker| {
        for _ in 0..8 {
            attacker.flood(false, 1000, |_| request::barrier("/b", 1 << 40));
        }
    }),
    attack("pushes to a queue that many wait for", |attacker| {
        for _ in 0..50 {
            attacker.flood(false, 100, |_| wait_for("/q"));
        }
        attacker.flood(false, 1, |_| request::push("/q", "x").repeat(3000));
    }),
    attack("a key that many wait for", |attacker| {
        for _ in 0..50 {
            attacker.flood(false, 100, |_| wait_for("/soon"));
        }
        attacker.prepare(&request::set("/soon", "x"));
    }),
    attack("barriers of any size", |attacker| {
        for size in [i64::MIN, -1, 0, 1, i64::MAX] {
            attacker.flood(false, 100, |_| request::barrier("/any", size));
        }
        attacker.prepare(&request::set("/any", i64::MAX.to_string()));
        attacker.flood(true, 1, |_| request::barrier("/any", i64::MAX));
    }),
    attack("waits that are reset", |attacker| {
        for _ in 0..200 {
            if let Some(mut peer) = attacker.join() {
                peer.send(&wait_for("/reset"));
                peer.reset();
            }
        }
    }),
    attack("cancel waits again and again", |attacker: &mut Attacker| {
        attacker.flood(true, 10, |_| request::CANCEL_WAIT.repeat(30_000));
    }),
];

fn keys(set: usize, count: usize) -> impl ExactSizeIterator<Item = String> {
    (0..count).map(move |key| format!("/w/{set}/{key}"))
}

fn wait_for(key: &str) -> Vec<u8> {
    request::wait(std::iter::once(key.to_owned()))
}
