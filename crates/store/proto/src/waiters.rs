//! Waits for keys: registration, and the waits that an operation ends.
//!
//! A wait is registered on the keys that were absent at its start. It is over when each of them has
//! existed once; a later deletion of a key does not matter. A registration is removed when it is
//! used, so each waiter is woken once. The work for a connection that cancels or leaves depends
//! only on its own keys.
//!
//! The work of an operation on a key depends only on the waits that the operation changes. Each key
//! has three sets of waits:
//!
//! | waits | a write of the key | an entry of the queue |
//! |---|---|---|
//! | `last`: for no other key any more | ends them | ends the oldest |
//! | `more`: for other keys too | notes that they have seen the key | the same |
//! | `barriers`, by the number that they wait for | ends those whose number is reached | |
//!
//! Registrations of cancelled waits are removed in steps ([`Waiters::sweep`]).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::keyspace::ENTRY_OVERHEAD;
use super::meter::Meter;
use rdzv_core::ident::ConnId;

/// Maximum number of registrations of cancelled waits that one step removes.
pub const SWEEP_STEP: usize = 512;

/// The condition of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitKind {
    /// `WAIT`: the keys have to exist.
    Presence,
    /// `BARRIER`: the number under the key has to be at least this.
    /// Any operation may write the number, so a member can wait for others that only add to the
    /// key.
    Barrier(i64),
}

/// All waits of one store.
#[derive(Debug, Default)]
pub struct Waiters {
    keys: BTreeMap<Box<[u8]>, Registered>,
    waits: BTreeMap<Serial, Wait>,
    connections: BTreeMap<ConnId, BTreeSet<Serial>>,
    /// Cancelled waits with remaining registrations.
    cancelled: VecDeque<(Serial, Wait)>,
    next: Serial,
}

/// Serial number of a wait.
/// Later waits have larger numbers, so a set of serial numbers is in order of registration.
pub type Serial = u64;

#[derive(Debug, Default)]
struct Registered {
    last: BTreeSet<Serial>,
    more: BTreeSet<Serial>,
    barriers: BTreeSet<(i64, Serial)>,
}

#[derive(Debug)]
struct Wait {
    connection: ConnId,
    kind: WaitKind,
    /// Keys that the wait is still registered on.
    missing: BTreeSet<Box<[u8]>>,
    /// `true` if more keys may be added, so the wait cannot be over yet.
    open: bool,
    /// Meter that counts the memory of the wait.
    owner: Meter,
}

impl Waiters {
    /// Returns the number of waits.
    pub fn len(&self) -> usize {
        self.waits.len()
    }

    /// `true` if there is no wait.
    pub fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// `true` if registrations of cancelled waits are left.
    #[inline]
    pub fn has_cancelled(&self) -> bool {
        !self.cancelled.is_empty()
    }

    /// Returns the number of waits of one connection.
    pub fn count(&self, connection: ConnId) -> usize {
        self.connections.get(&connection).map_or(0, BTreeSet::len)
    }

    /// `true` if any wait is registered on the key.
    pub fn has(&self, key: &[u8]) -> bool {
        !self.keys.is_empty() && self.keys.contains_key(key)
    }

    /// Registers a connection on keys. A repeated key counts once.
    pub fn register<'k>(
        &mut self,
        connection: ConnId,
        kind: WaitKind,
        keys: impl Iterator<Item = &'k [u8]>,
        owner: &Meter,
    ) {
        let serial = self.begin(connection, kind, owner);
        for key in keys {
            self.add(serial, key);
        }
        self.finish(serial);
    }

    /// Begins a wait to which keys are added in several steps.
    pub fn begin(&mut self, connection: ConnId, kind: WaitKind, owner: &Meter) -> Serial {
        let serial = self.next;
        self.next += 1;
        owner.grow(ENTRY_OVERHEAD);
        self.connections
            .entry(connection)
            .or_default()
            .insert(serial);
        let wait = Wait {
            connection,
            kind,
            missing: BTreeSet::new(),
            open: true,
            owner: owner.clone(),
        };
        self.waits.insert(serial, wait);
        serial
    }

    /// Registers a wait that has begun on one more key.
    pub fn add(&mut self, serial: Serial, key: &[u8]) {
        let Some(wait) = self.waits.get_mut(&serial) else {
            return;
        };
        if !wait.missing.insert(key.into()) {
            return;
        }
        wait.owner.grow(registration(key));
        let registered = match self.keys.get_mut(key) {
            Some(registered) => registered,
            None => self.keys.entry(key.into()).or_default(),
        };
        match wait.kind {
            WaitKind::Presence => registered.more.insert(serial),
            WaitKind::Barrier(number) => registered.barriers.insert((number, serial)),
        };
    }

    /// Ends the list of keys of a wait; `true` if the wait is already over.
    pub fn finish(&mut self, serial: Serial) -> bool {
        let Some(wait) = self.waits.get_mut(&serial) else {
            return true;
        };
        wait.open = false;
        if wait.missing.is_empty() {
            self.end(serial);
            return true;
        }
        self.note_last(serial);
        false
    }

    /// Wakes the waits for a key that was written.
    /// These are the waits for the key's presence, and the members of barriers that are now
    /// complete. `number` is the number that the key holds now, or `None` if the value is not a
    /// number.
    pub fn wake(&mut self, key: &[u8], number: Option<i64>, woken: &mut Vec<ConnId>) {
        let Some(registered) = self.keys.get_mut(key) else {
            return;
        };
        let mut seen = std::mem::take(&mut registered.last);
        seen.append(&mut registered.more);
        let complete = match number {
            Some(number) if !registered.barriers.is_empty() => {
                let later = match number.checked_add(1) {
                    Some(above) => registered.barriers.split_off(&(above, 0)),
                    None => BTreeSet::new(),
                };
                std::mem::replace(&mut registered.barriers, later)
            }
            _ => BTreeSet::new(),
        };
        self.forget_if_empty(key);
        for serial in seen {
            self.see(serial, key, woken);
        }
        for (_, serial) in complete {
            self.see(serial, key, woken);
        }
    }

    /// Offers `available` entries of a queue to the waits for it.
    /// No wait has been woken for these entries. Wakes at most `available` waits that need no other
    /// key, the oldest first, and returns their number. Waits that need other keys as well note
    /// that they have seen this queue.
    pub fn offer(&mut self, queue: &[u8], available: usize, woken: &mut Vec<ConnId>) -> usize {
        if available == 0 {
            return 0;
        }
        let Some(registered) = self.keys.get_mut(queue) else {
            return 0;
        };
        let seen = std::mem::take(&mut registered.more);
        let taken: Vec<Serial> = registered.last.iter().take(available).copied().collect();
        for serial in &taken {
            registered.last.remove(serial);
        }
        self.forget_if_empty(queue);
        for serial in seen {
            self.see(serial, queue, woken);
        }
        let already = woken.len();
        for serial in taken {
            self.see(serial, queue, woken);
        }
        woken.len() - already
    }

    /// Cancels all waits of a connection.
    pub fn cancel(&mut self, connection: ConnId) {
        if self.connections.is_empty() {
            return;
        }
        let Some(serials) = self.connections.remove(&connection) else {
            return;
        };
        for serial in serials {
            if let Some(wait) = self.waits.remove(&serial) {
                self.cancelled.push_back((serial, wait));
            }
        }
        self.sweep();
    }

    /// Removes some registrations of cancelled waits; `true` if there are more.
    pub fn sweep(&mut self) -> bool {
        for _ in 0..SWEEP_STEP {
            let Some((serial, wait)) = self.cancelled.front_mut() else {
                return false;
            };
            let (serial, kind) = (*serial, wait.kind);
            let Some(key) = wait.missing.pop_first() else {
                wait.owner.shrink(ENTRY_OVERHEAD);
                self.cancelled.pop_front();
                continue;
            };
            wait.owner.shrink(registration(&key));
            if let Some(registered) = self.keys.get_mut(&key) {
                registered.last.remove(&serial);
                registered.more.remove(&serial);
                if let WaitKind::Barrier(number) = kind {
                    registered.barriers.remove(&(number, serial));
                }
            }
            self.forget_if_empty(&key);
        }
        !self.cancelled.is_empty()
    }

    /// Notes that a wait has seen a key, and removes its registration on the key.
    fn see(&mut self, serial: Serial, key: &[u8], woken: &mut Vec<ConnId>) {
        let Some(wait) = self.waits.get_mut(&serial) else {
            // The wait is cancelled, and a later step removes it.
            return;
        };
        wait.missing.remove(key);
        wait.owner.shrink(registration(key));
        if wait.open {
            return;
        }
        if wait.missing.is_empty() {
            woken.push(wait.connection);
            self.end(serial);
        } else {
            self.note_last(serial);
        }
    }

    /// Moves a wait that lacks only one key to the set `last` of that key.
    fn note_last(&mut self, serial: Serial) {
        if let Some(wait) = self.waits.get(&serial)
            && wait.missing.len() == 1
            && wait.kind == WaitKind::Presence
            && let Some(key) = wait.missing.first()
            && let Some(registered) = self.keys.get_mut(key)
            && registered.more.remove(&serial)
        {
            registered.last.insert(serial);
        }
    }

    /// Removes a wait without registrations.
    fn end(&mut self, serial: Serial) {
        let Some(wait) = self.waits.remove(&serial) else {
            return;
        };
        wait.owner.shrink(ENTRY_OVERHEAD);
        if let Some(own) = self.connections.get_mut(&wait.connection) {
            own.remove(&serial);
            if own.is_empty() {
                self.connections.remove(&wait.connection);
            }
        }
    }

    fn forget_if_empty(&mut self, key: &[u8]) {
        if self.keys.get(key).is_some_and(|registered| {
            registered.last.is_empty()
                && registered.more.is_empty()
                && registered.barriers.is_empty()
        }) {
            self.keys.remove(key);
        }
    }
}

/// Returns the memory of one registration.
/// The key is stored in the wait and in the table of keys.
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

    fn empty() -> (Waiters, Vec<ConnId>, Meter) {
        Default::default()
    }

    fn is_clean(waiters: &Waiters, owner: &Meter) -> bool {
        waiters.keys.is_empty()
            && waiters.waits.is_empty()
            && waiters.connections.is_empty()
            && waiters.cancelled.is_empty()
            && owner.bytes() == 0
    }

    #[test]
    fn a_wait_ends_with_the_last_of_its_keys_and_once() {
        let (mut waiters, mut woken, owner) = empty();
        waiters.register(A, WaitKind::Presence, keys(&["x", "y", "x"]), &owner);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, []);
        waiters.wake(b"y", None, &mut woken);
        waiters.wake(b"y", None, &mut woken);
        assert_eq!(woken, [A]);
        assert!(is_clean(&waiters, &owner));
    }

    #[test]
    fn cancelling_leaves_nothing_behind_and_others_alone() {
        let (mut waiters, mut woken, owner) = empty();
        waiters.register(A, WaitKind::Presence, keys(&["x", "y"]), &owner);
        waiters.register(A, WaitKind::Presence, keys(&["z"]), &owner);
        waiters.register(B, WaitKind::Presence, keys(&["x"]), &owner);
        waiters.cancel(A);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, [B]);
        assert!(is_clean(&waiters, &owner));
    }

    #[test]
    fn a_member_of_a_barrier_is_woken_by_the_number_and_not_by_presence() {
        let (mut waiters, mut woken, owner) = empty();
        waiters.register(A, WaitKind::Barrier(3), keys(&["x"]), &owner);
        waiters.register(B, WaitKind::Presence, keys(&["x"]), &owner);
        waiters.wake(b"x", Some(2), &mut woken);
        assert_eq!(woken, [B]);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, [B]);
        waiters.wake(b"x", Some(3), &mut woken);
        assert_eq!(woken, [B, A]);
        assert!(is_clean(&waiters, &owner));
    }

    #[test]
    fn an_offer_wakes_the_oldest_only_and_marks_those_who_lack_more() {
        let (mut waiters, mut woken, owner) = empty();
        waiters.register(B, WaitKind::Presence, keys(&["q", "x"]), &owner);
        waiters.register(A, WaitKind::Presence, keys(&["q"]), &owner);
        waiters.register(ConnId(3), WaitKind::Presence, keys(&["q"]), &owner);
        assert_eq!(waiters.offer(b"q", 1, &mut woken), 1);
        assert_eq!(woken, [A]);
        waiters.wake(b"x", None, &mut woken);
        assert_eq!(woken, [A, B]);
        assert_eq!(waiters.offer(b"q", 5, &mut woken), 1);
        assert!(is_clean(&waiters, &owner));
    }

    #[test]
    fn a_wait_that_comes_in_steps_ends_with_its_last_key_and_not_before_its_last_step() {
        let (mut waiters, mut woken, owner) = empty();
        let serial = waiters.begin(A, WaitKind::Presence, &owner);
        waiters.add(serial, b"x");
        waiters.wake(b"x", None, &mut woken);
        waiters.add(serial, b"y");
        assert!(!waiters.finish(serial));
        assert_eq!(woken, []);
        waiters.wake(b"y", None, &mut woken);
        assert_eq!(woken, [A]);
        let serial = waiters.begin(A, WaitKind::Presence, &owner);
        assert!(waiters.finish(serial));
        assert!(is_clean(&waiters, &owner));
    }

    #[test]
    fn a_large_cancelled_wait_is_taken_out_in_steps_and_wakes_nobody() {
        let (mut waiters, mut woken, owner) = empty();
        let names: Vec<String> = (0..3 * SWEEP_STEP).map(|n| n.to_string()).collect();
        let all = || names.iter().map(String::as_bytes);
        waiters.register(A, WaitKind::Presence, all(), &owner);
        waiters.cancel(A);
        assert!(waiters.is_empty() && owner.bytes() > 0);
        all().for_each(|name| waiters.wake(name, None, &mut woken));
        assert_eq!(woken, []);
        let steps = std::iter::from_fn(|| waiters.sweep().then_some(())).count();
        assert_eq!(steps, 2);
        assert!(is_clean(&waiters, &owner));
    }
}
