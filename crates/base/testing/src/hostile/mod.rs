//! Attacks on a store server that any peer in the network can carry out.
//!
//! Each attack consists of a bounded number of connections and bytes. The attack ends when the
//! server has accepted them, has refused them, or does not read them. At the same time, the caller
//! of an attack sends requests as an honest client. Afterwards, the caller checks the server's
//! counters.
//!
//! | file | subject |
//! |---|---|
//! | `memory.rs` | stored data, and data of unfinished requests |
//! | `work.rs` | the time of the server's one thread |
//! | `waits.rs` | waits and barriers |
//! | `unread.rs` | replies that are not read |
//! | `connections.rs` | descriptors; half-open and reset connections |
//! | `lengths.rs` | bytes that are not requests |
//! | `peer.rs` | a connection of an attacker |
//! | `request.rs` | requests as bytes |

mod connections;
mod lengths;
mod memory;
mod peer;
pub mod request;
mod unread;
mod waits;
mod work;

pub use connections::CONNECTIONS;
pub use peer::{Attacker, TestPeer};

/// One attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Name of the attack in tables.
    pub name: &'static str,
    /// Carries out the attack once.
    /// Connections that the attack does not end stay open until the attacker is dropped.
    pub run: fn(&mut Attacker),
}

const fn attack(name: &'static str, run: fn(&mut Attacker)) -> Attack {
    Attack { name, run }
}

/// Returns all attacks.
pub fn attacks() -> impl Iterator<Item = Attack> {
    let all = [
        memory::ATTACKS,
        work::ATTACKS,
        waits::ATTACKS,
        unread::ATTACKS,
        connections::ATTACKS,
        lengths::ATTACKS,
    ];
    all.into_iter().flatten().copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn there_are_forty_attacks_at_least_each_with_a_name_of_its_own() {
        let names: BTreeSet<_> = super::attacks().map(|attack| attack.name).collect();
        assert!(names.len() >= 40 && names.len() == super::attacks().count());
    }
}
