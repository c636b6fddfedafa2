//! Deadlines by key.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};

use rdzv_core::time::Mono;

/// At most one deadline for each key.
///
/// Each operation costs O(log N).
#[derive(Debug, Default)]
pub(super) struct Deadlines<K> {
    by_key: BTreeMap<K, Mono>,
    by_time: BTreeSet<(Mono, K)>,
}

impl<K: Ord> Deadlines<K> {
    /// Sets the deadline of a key; it replaces an earlier one.
    pub(super) fn set<Q>(&mut self, key: &Q, at: Mono)
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        if self.by_key.get(key) != Some(&at) {
            self.remove(key);
            self.by_key.insert(key.to_owned(), at);
            self.by_time.insert((at, key.to_owned()));
        }
    }

    /// Removes the deadline of a key; returns `true` if the key had one.
    pub(super) fn remove<Q>(&mut self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ToOwned<Owned = K> + ?Sized,
    {
        let at = self.by_key.remove(key);
        at.is_some_and(|at| self.by_time.remove(&(at, key.to_owned())))
    }

    pub(super) fn has(&self, key: &K) -> bool {
        self.by_key.contains_key(key)
    }

    pub(super) fn first(&self) -> Option<&(Mono, K)> {
        self.by_time.first()
    }

    pub(super) fn next(&self) -> Option<Mono> {
        self.first().map(|(at, _)| *at)
    }

    /// Removes and returns the next deadline if it has passed.
    pub(super) fn take_due(&mut self, now: Mono) -> Option<(Mono, K)> {
        self.next().filter(|at| *at <= now)?;
        let (at, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some((at, key))
    }
}
