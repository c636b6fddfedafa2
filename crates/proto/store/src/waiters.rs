//! Waits for keys: registration, and which of them an operation ends.
//!
//! A wait is registered on the keys that were absent when it came, and is over when each of them
//! has been there once; a key that is deleted again meanwhile does not hold it back. Every
//! registration is taken out when it has been used, so nobody is woken twice, and a connection
//! that cancels or leaves costs work for its own keys only.

use std::collections::{BTreeMap, BTreeSet};

use super::keyspace::ENTRY_OVERHEAD;
use rdzv_core::ident::ConnId;

/// The condition of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitKind {
    /// `WAIT`: the keys shall be there.
    Presence,
    /// `BARRIER`: the number under the key shall be at least this. How it gets there does not
    /// matter, so a member may wait for others that only add to it.
    Barrier(i64),
}

/// All waits of one store.
#[derive(Debug, Default)]
pub struct Waiters {
    /// Registrations per key. Serials grow, so a set is in order of registration.
    keys: BTreeMap<Box<[u8]>, BTreeSet<Serial>>,
    waits: BTreeMap<Serial, Wait>,
    connections: BTreeMap<ConnId, BTreeSet<Serial>>,
    next: Serial,
    memory: usize,
}

type Serial = u64;

#[derive(Debug)]
struct Wait {
    connection: ConnId,
    kind: WaitKind,
    /// The keys it is still registered on.
    missing: BTreeSet<Box<[u8]>>,
}

impl Waiters {
    /// Number of waits.
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// Memory of all registrations.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Whether any wait is registered on the key.
    pub fn has(&self, key: &[u8]) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(key)
    }

    /// Registers a connection on keys. A key named twice counts once.
    pub fn register<'k>(
        &mut self,
        connection: ConnId,
        kind: WaitKind,
        keys: impl Iterator<Item = &'k [u8]>,
    ) {
        let serial = self.next;
        self.next += 1;
        let mut missing = BTreeSet::new();
        for key in keys {
            if missing.insert(Box::from(key)) {
                self.memory += registration(key);
                self.keys.entry(key.into()).or_default().insert(serial);
            }
        }
        self.memory += ENTRY_OVERHEAD;
        self.connections
            .entry(connection)
            .or_default()
            .insert(serial);
        self.waits.insert(
            serial,
            Wait {
                connection,
                kind,
                missing,
            },
        );
    }

    /// A key was written, and holds `number` now if it is one: wakes the waits for its
    /// presence, and members of barriers that are complete with this.
    pub fn wake(&mut self, key: &[u8], number: Option<i64>, woken: &mut Vec<ConnId>) {
        self.take_off(key, woken, |wait, _| match wait.kind {
            WaitKind::Presence => true,
            WaitKind::Barrier(world_size) => number.is_some_and(|number| number >= world_size),
        });
    }

    /// A queue has `available` entries that nobody has been woken for: wakes as many waits that
    /// lack nothing else, the oldest first, and returns how many. Waits that also lack other keys
    /// have seen this one.
    pub fn offer(&mut self, queue: &[u8], available: usize, woken: &mut Vec<ConnId>) -> usize {
        let mut taken = 0;
        if available > 0 && self.has(queue) {
            self.take_off(queue, woken, |wait, _| {
                if matches!(wait.kind, WaitKind::Barrier(_)) {
                    return false;
                }
                let last = wait.missing.len() == 1;
                let wakes = !last || taken < available;
                taken += usize::from(last && wakes);
                wakes
            });
        }
        taken
    }

    /// Drops all waits of a connection.
    pub fn cancel(&mut self, connection: ConnId) {
        if self.connections.is_empty() {
            return;
        }
        for serial in self.connections.remove(&connection).unwrap_or_default() {
            let Some(wait) = self.waits.remove(&serial) else {
                continue;
            };
            self.memory -= ENTRY_OVERHEAD;
            for key in wait.missing {
                self.memory -= registration(&key);
                if let Some(serials) = self.keys.get_mut(&key) {
                    serials.remove(&serial);
                    if serials.is_empty() {
                        self.keys.remove(&key);
                    }
                }
            }
        }
    }

    /// Takes the key off every wait on it that `wanted` names; waits that lack nothing any more
    /// are over.
    fn take_off(
        &mut self,
        key: &[u8],
        woken: &mut Vec<ConnId>,
        mut wanted: impl FnMut(&Wait, Serial) -> bool,
    ) {
        let Some(mut serials) = self.keys.remove(key) else {
            return;
        };
        serials.retain(|&serial| {
            let Some(wait) = self.waits.get_mut(&serial) else {
                return false;
            };
            if !wanted(wait, serial) {
                return true;
            }
            wait.missing.remove(key);
            self.memory -= registration(key);
            if wait.missing.is_empty() {
                let connection = wait.connection;
                woken.push(connection);
                self.waits.remove(&serial);
                self.memory -= ENTRY_OVERHEAD;
                if let Some(own) = self.connections.get_mut(&connection) {
                    own.remove(&serial);
                    if own.is_empty() {
                        self.connections.remove(&connection);
                    }
                }
            }
            false
        });
        if !serials.is_empty() {
            self.keys.insert(key.into(), serials);
        }
    }
}

/// Memory of one registration: the key lies in the wait and in the table of keys.
fn registration(key: &[u8]) -> usize {
    2 * (ENTRY_OVERHEAD + key.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnId = ConnId(1);
    const B: ConnId = ConnId(2);

    fn keys<'k>(names: &'k [&'k str]) -> impl Iterator<Item = &'k [u8]> {
        names.iter().map(|name| name.as_bytes())
    }

    fn is_clean(waiters: &Waiters) -> bool {
        waiters.keys.is_empty()
            && waiters.waits.is_empty()
            && waiters.connections.is_empty()
            && waiters.memory == 0
    }

    #[test]
    fn a_wait_ends_with_the_last_of_its_keys_and_once() {
        let (mut waiters, mut woken) = (Waiters::default(), vec![]);
        waiters.register(A, WaitKind::Presence, keys(&["x", "y", "x"]));
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, []);
        waiters.wake(b"y", None, &mut woken);
        waiters.wake(b"y", None, &mut woken);
        assert_eq!(woken, [A]);
        assert!(is_clean(&waiters));
    }

    #[test]
    fn cancelling_leaves_nothing_behind_and_others_alone() {
        let (mut waiters, mut woken) = (Waiters::default(), vec![]);
        waiters.register(A, WaitKind::Presence, keys(&["x", "y"]));
        waiters.register(A, WaitKind::Presence, keys(&["z"]));
        waiters.register(B, WaitKind::Presence, keys(&["x"]));
        waiters.cancel(A);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, [B]);
        assert!(is_clean(&waiters));
    }

    #[test]
    fn a_member_of_a_barrier_is_woken_by_the_number_and_not_by_presence() {
        let (mut waiters, mut woken) = (Waiters::default(), vec![]);
        waiters.register(A, WaitKind::Barrier(3), keys(&["x"]));
        waiters.register(B, WaitKind::Presence, keys(&["x"]));
        waiters.wake(b"x", Some(2), &mut woken);
        assert_eq!(woken, [B]);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, [B]);
        waiters.wake(b"x", Some(3), &mut woken);
        assert_eq!(woken, [B, A]);
        assert!(is_clean(&waiters));
    }

    #[test]
    fn an_offer_wakes_the_oldest_only_and_marks_those_who_lack_more() {
        let (mut waiters, mut woken) = (Waiters::default(), vec![]);
        waiters.register(B, WaitKind::Presence, keys(&["q", "x"]));
        waiters.register(A, WaitKind::Presence, keys(&["q"]));
        waiters.register(ConnId(3), WaitKind::Presence, keys(&["q"]));
        assert_eq!(waiters.offer(b"q", 1, &mut woken), 1);
        assert_eq!(woken, [A]);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, [A, B]);
        assert_eq!(waiters.offer(b"q", 5, &mut woken), 1);
        assert!(is_clean(&waiters));
    }
}
