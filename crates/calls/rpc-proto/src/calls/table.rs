//! Calls that have not ended.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_core::time::Mono;

/// Waiting calls by number, each with or without a deadline.
///
/// A call leaves the table exactly once: taken, expired or drained.
#[derive(Debug, Clone)]
pub struct CallTable<T> {
    calls: BTreeMap<u64, (T, Option<Mono>)>,
    /// Deadlines in order, each with the number of its call.
    deadlines: BTreeSet<(Mono, u64)>,
}

impl<T> Default for CallTable<T> {
    fn default() -> Self {
        Self {
            calls: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }
}

impl<T> CallTable<T> {
    /// Adds a call under a number that no call had before.
    pub fn insert(&mut self, call: u64, value: T, deadline: Option<Mono>) {
        self.deadlines.extend(deadline.map(|at| (at, call)));
        self.calls.insert(call, (value, deadline));
    }

    /// Returns a call's value, mutably; `None` if the call has left the table.
    pub fn get_mut(&mut self, call: u64) -> Option<&mut T> {
        self.calls.get_mut(&call).map(|(value, _)| value)
    }

    /// Removes and returns a call that has ended; `None` if it ended before.
    pub fn take(&mut self, call: u64) -> Option<T> {
        let (value, deadline) = self.calls.remove(&call)?;
        if let Some(at) = deadline {
            self.deadlines.remove(&(at, call));
        }
        Some(value)
    }

    /// Removes the calls whose deadlines have passed, earliest first.
    ///
    /// Calls that the iterator does not reach remain.
    pub fn expire(&mut self, now: Mono) -> impl Iterator<Item = (u64, T)> + use<'_, T> {
        std::iter::from_fn(move || {
            let (at, call) = *self.deadlines.first()?;
            if at > now {
                return None;
            }
            Some((call, self.take(call)?))
        })
    }

    /// Returns the first deadline; `None` if no call has one.
    pub fn first_deadline(&self) -> Option<Mono> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Removes all calls, in the order of their numbers.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, T)> + use<T> {
        let calls = std::mem::take(self).calls.into_iter();
        calls.map(|(call, (value, _))| (call, value))
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// `true` if there is no call.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::from_origin(Duration::from_millis(millis))
    }

    fn table() -> CallTable<&'static str> {
        let mut table = CallTable::default();
        for (call, value, deadline) in [
            (1, "to a", Some(at(30))),
            (2, "to b", Some(at(10))),
            (3, "to a", None),
            (4, "to b", Some(at(20))),
        ] {
            table.insert(call, value, deadline);
        }
        table
    }

    #[test]
    fn calls_expire_in_the_order_of_their_deadlines() {
        let mut table = table();
        assert_eq!(table.expire(at(9)).next(), None);
        assert_eq!(table.first_deadline(), Some(at(10)));
        let expired: Vec<_> = table.expire(at(20)).collect();
        assert_eq!(expired, [(2, "to b"), (4, "to b")]);
        assert_eq!(table.take(2), None, "a late reply finds no call");
        assert_eq!(table.first_deadline(), Some(at(30)));
        assert_eq!(table.take(1), Some("to a"));
        assert_eq!(table.first_deadline(), None);
        assert_eq!(table.expire(Mono::MAX).next(), None);
        assert_eq!(table.take(3), Some("to a"), "without a deadline it stays");
    }

    #[test]
    fn what_is_not_asked_for_stays() {
        let mut table = table();
        assert_eq!(table.expire(at(99)).next(), Some((2, "to b")));
        assert_eq!(table.len(), 3);
        assert_eq!(table.expire(at(99)).count(), 2);
    }

    #[test]
    fn nothing_is_left_of_drained_calls() {
        let mut table = table();
        let numbers: Vec<_> = table.drain().map(|(call, _)| call).collect();
        assert_eq!(numbers, [1, 2, 3, 4]);
        assert!(table.is_empty());
        assert_eq!(table.first_deadline(), None);
    }

    proptest! {
        /// Compares the table with a list: each call leaves once, at the right time.
        #[test]
        fn it_does_what_a_list_does(steps in prop::collection::vec(any::<(u8, u8)>(), 1..200)) {
            let mut table = CallTable::default();
            let mut list: Vec<(u64, Option<Mono>)> = Vec::new();
            let mut now = 0;
            for (number, (what, argument)) in (1..).zip(steps) {
                match what % 4 {
                    0 | 1 => {
                        let deadline = (argument < 200).then(|| at(now + u64::from(argument)));
                        list.push((number, deadline));
                        table.insert(number, number, deadline);
                    }
                    2 if !list.is_empty() => {
                        let (call, _) = list.remove(usize::from(argument) % list.len());
                        prop_assert_eq!(table.take(call), Some(call));
                    }
                    _ => now += u64::from(argument),
                }
                let due = |deadline: &Option<Mono>| deadline.is_some_and(|due| due <= at(now));
                let expected = list.extract_if(.., |(_, deadline)| due(deadline));
                let mut expected: Vec<_> = expected.map(|(call, at)| (at, call)).collect();
                expected.sort_unstable();
                let expected: Vec<_> = expected.into_iter().map(|(_, call)| (call, call)).collect();
                prop_assert_eq!(table.expire(at(now)).collect::<Vec<_>>(), expected);
                let first = list.iter().filter_map(|(_, deadline)| *deadline).min();
                prop_assert_eq!(table.first_deadline(), first);
                prop_assert_eq!(table.len(), list.len());
            }
        }
    }
}
