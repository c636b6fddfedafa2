//! Attacks on the time of the server's one thread.

use super::{Attack, Attacker, attack, request};

const MIB: usize = 1 << 20;

pub(super) const ATTACKS: &[Attack] = &[
    attack(
        "append to a large value that a barrier waits on",
        |attacker| {
            attacker.flood(false, 1, |_| request::barrier("/blank", 1 << 40));
            attacker.prepare(&request::set("/blank", vec![b' '; 2 * MIB]));
            attacker.flood(false, 2000, |_| request::append("/blank", " "));
        },
    ),
    attack("add to a large number", |attacker| {
        attacker.prepare(&request::set("/zeros", vec![b'0'; 6 * MIB]));
        for _ in 0..50 {
            attacker.flood(true, 1, |_| request::add("/zeros", 1));
        }
    }),
    attack("read and append to a large value in turns", |attacker| {
        attacker.prepare(&request::set("/grow", vec![7; MIB]));
        attacker.flood(true, 60, |_| {
            [request::get("/grow"), request::append("/grow", "7")].concat()
        });
    }),
    attack("list all keys over and over", |attacker| {
        attacker.prepare(&keys(1000));
        attacker.flood(true, 5, |_| request::LIST_KEYS.repeat(400));
    }),
    attack("list many keys", |attacker| {
        attacker.prepare(&keys(30_000));
        attacker.flood(true, 10, |_| request::LIST_KEYS.to_vec());
    }),
    attack("list keys between changes", |attacker| {
        attacker.prepare(&keys(10_000));
        attacker.flood(true, 50, |n| {
            [&request::set(format!("/n/{n}"), "")[..], request::LIST_KEYS].concat()
        });
    }),
    attack("count keys", |attacker| {
        attacker.flood(true, 10, |_| request::NUM_KEYS.repeat(32 << 10));
    }),
    attack("ping", |attacker| {
        attacker.flood(true, 10, |n| request::ping(n as u32).repeat(8 << 10));
    }),
    attack("ask for one small value", |attacker| {
        attacker.prepare(&request::set("/small", [7; 15_000]));
        attacker.flood(true, 5, |_| request::get("/small").repeat(500));
    }),
    attack("ask for one large value", |attacker| {
        attacker.prepare(&request::set("/big", vec![7; 4 * MIB]));
        attacker.flood(true, 1, |_| request::get("/big").repeat(20));
    }),
    attack("ask for one value many times in a request", |attacker| {
        attacker.prepare(&request::set("/many", [7; 8000]));
        attacker.flood(true, 3, |_| {
            request::multi_get((0..2000).map(|_| "/many".to_owned()))
        });
    }),
    attack("check many keys", |attacker| {
        attacker.prepare(&keys(100_000));
        attacker.flood(true, 2, |_| request::check((0..100_000).map(key)));
    }),
    attack("set many keys", |attacker| {
        attacker.flood(false, 3, |_| keys(30_000));
    }),
    attack("compare a large value that is not held", |attacker| {
        attacker.prepare(&request::set("/large", vec![7; 2 * MIB]));
        attacker.flood(true, 20, |_| request::compare_set("/large", "x", "y"));
    }),
    attack("set and delete", |attacker| {
        attacker.flood(true, 3000, |_| {
            [request::set("/d", [7; 20_000]), request::delete("/d")].concat()
        });
    }),
    attack("send one byte at a time", |attacker| {
        let bytes = request::set("/slow", [7; 300]).repeat(5);
        attacker.flood(false, bytes.len(), |n| vec![bytes[n]]);
    }),
    attack("push and pop", |attacker| {
        attacker.flood(true, 3000, |_| {
            [request::push("/p", [7; 100]), request::pop("/p")].concat()
        });
    }),
    attack("many connections together", many_at_once),
];

fn key(number: usize) -> String {
    format!("/k/{number}")
}

fn keys(count: usize) -> Vec<u8> {
    request::multi_set((0..count).map(key), b"")
}

/// Sends requests for several turns on every connection.
fn many_at_once(attacker: &mut Attacker) {
    for _ in 0..60 {
        attacker.flood(false, 1, |_| request::NUM_KEYS.repeat(30 << 10));
    }
}
