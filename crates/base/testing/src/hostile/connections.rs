//! Attacks on descriptors, with half-open, reset, silent or idle connections.

use std::net::Shutdown;

use socket2::{SockFilter, SockRef};

use super::{Attack, Attacker, attack, request};

/// Maximum number of connections of one attack on descriptors.
pub const CONNECTIONS: usize = 150;

pub(super) const ATTACKS: &[Attack] = &[
    attack("connections that say nothing", |attacker| {
        each(attacker, |_| {});
    }),
    attack(
        "connections that stop in the middle of their first request",
        |attacker| {
            each(attacker, |peer| {
                peer.send(&request::validate()[..3]);
            });
        },
    ),
    attack("clients that are idle", |attacker| {
        each(attacker, |peer| {
            peer.send(&request::validate());
        });
    }),
    attack("connections that are reset immediately", |attacker| {
        (0..CONNECTIONS)
            .filter_map(|_| attacker.connect())
            .for_each(super::TestPeer::reset);
    }),
    attack("connections that are closed immediately", |attacker| {
        (0..CONNECTIONS)
            .filter_map(|_| attacker.connect())
            .for_each(drop);
    }),
    attack(
        "clients that leave with everything unanswered",
        |attacker| {
            for _ in 0..CONNECTIONS {
                if let Some(mut peer) = attacker.join() {
                    peer.send(&request::NUM_KEYS.repeat(20_000));
                }
            }
        },
    ),
    attack("resets in the middle of large values", |attacker| {
        for _ in 0..20 {
            if let Some(mut peer) = attacker.join() {
                let begun = [request::set_head("/r", 8 << 20), vec![7; 1 << 20]];
                peer.send(&begun.concat());
                peer.reset();
            }
        }
    }),
    attack("clients that end their side only", |attacker| {
        each(attacker, |peer| {
            peer.send(&[request::validate(), request::NUM_KEYS.repeat(100)].concat());
            let _ = peer.stream().shutdown(Shutdown::Write);
        });
    }),
    attack("clients whose host is lost", |attacker| {
        each(attacker, |peer| {
            let wait = request::wait(std::iter::once("/gone".to_owned()));
            peer.send(&[request::validate(), wait].concat());
            go_silent(peer);
        });
    }),
];

/// Opens connections, calls `act` with each, and keeps them.
fn each(attacker: &mut Attacker, act: impl Fn(&mut super::TestPeer)) {
    for _ in 0..CONNECTIONS {
        if let Some(mut peer) = attacker.connect() {
            act(&mut peer);
            attacker.keep(peer);
        }
    }
}

/// Drops everything that arrives for this connection.
/// For the server, this looks like a host that has lost power.
fn go_silent(peer: &super::TestPeer) {
    const RETURN: u16 = 0x06;
    let drop_everything = [SockFilter::new(RETURN, 0, 0, 0)];
    // A kernel without socket filters leaves an idle connection, which is an attack too.
    let _ = SockRef::from(peer.stream()).attach_filter(&drop_everything);
}
