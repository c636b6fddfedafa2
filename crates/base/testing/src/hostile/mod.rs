//! Attacks on a store server: by any peer over the network.
//!
//! Each attack is a bounded number of connections and bytes, and ends when the server has taken
//! them, has refused them, or does not read them. Nothing is answered for by time. The caller of an
//! attack asks the server as an honest client at the same time, and looks at its counters
//! afterwards.
//!
//! | file | attacks on |
//! |---|---|
//! | `memory.rs` | what the server stores, and what it keeps of unfinished requests |
//! | `work.rs` | the time of the server's one thread |
//! | `waits.rs` | waits and barriers |
//! | `unread.rs` | replies that nobody takes |
//! | `connections.rs` | descriptors; half-open and reset connections |
//! | `lengths.rs` | bytes that are no requests |
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
pub use peer::{Attacker, Peer};

/// One attack.
#[derive(Debug, Clone, Copy)]
pub struct Attack {
    /// Its name, for tables.
    pub name: &'static str,
    /// Carries it out once. The connections stay open until the attacker is dropped.
    pub run: fn(&mut Attacker),
}

/// All attacks.
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
