//! Attacks with replies that the client does not read.

use super::{Attack, attack, request};

const MIB: usize = 1 << 20;

pub(super) const ATTACKS: &[Attack] = &[
    attack("many values in one request, unread", |attacker| {
        attacker.prepare(&request::set("/k", [7; 16_000]));
        attacker.flood(false, 1, |_| {
            request::multi_get((0..30_000).map(|_| "/k".to_owned()))
        });
    }),
    attack("large values, unread", |attacker| {
        attacker.prepare(&request::set("/k", vec![7; 4 * MIB]));
        attacker.flood(false, 1, |_| request::get("/k").repeat(1000));
    }),
    attack("all keys, unread", |attacker| {
        attacker.prepare(&request::multi_set(
            (0..20_000).map(|key| format!("/k/{key}")),
            b"",
        ));
        attacker.flood(false, 1, |_| request::LIST_KEYS.repeat(10_000));
    }),
    attack("pings, unread", |attacker| {
        attacker.flood(false, 400, |n| request::ping(n as u32).repeat(10_000));
    }),
    attack("counts, unread", |attacker| {
        attacker.flood(false, 200, |_| request::NUM_KEYS.repeat(10_000));
    }),
    attack("queue entries, unread", |attacker| {
        attacker.flood(false, 6, |_| request::push("/q", vec![7; MIB]));
        attacker.flood(false, 1, |_| request::pop("/q").repeat(10_000));
    }),
    attack("comparisons, unread", |attacker| {
        attacker.prepare(&request::set("/c", [7; 15_000]));
        attacker.flood(false, 1, |_| {
            request::compare_set("/c", "x", "y").repeat(3000)
        });
    }),
    attack("many readers that stop reading", |attacker| {
        attacker.prepare(&request::set("/k", [7; 16_000]));
        for _ in 0..50 {
            attacker.flood(false, 1, |_| request::get("/k").repeat(500));
        }
    }),
    attack("a reply that is read little by little", |attacker| {
        attacker.prepare(&request::set("/k", vec![7; 2 * MIB]));
        let Some(mut peer) = attacker.join() else {
            return;
        };
        peer.send(&request::get("/k").repeat(3));
        for step in 1..20 {
            peer.take_at_least(step * 1000);
        }
        attacker.keep(peer);
    }),
];
