//! Calls that wait for their end.

use std::collections::BTreeMap;

use super::deadlines::Deadlines;
use rdzv_core::time::Mono;

/// Calls that wait for something, by number, each with a deadline or without.
///
/// A call leaves the table exactly once: taken, expired or drained.
#[derive(Debug, Clone)]
pub struct CallTable<K, T> {
    calls: BTreeMap<K, Waiting<T>>,
    deadlines: Deadlines<K>,
}

#[derive(Debug, Clone)]
struct Waiting<T> {
    value: T,
    deadline: Option<Mono>,
}

impl<K, T> Default for CallTable<K, T> {
    fn default() -> Self {
        Self {
            calls: BTreeMap::new(),
            deadlines: Deadlines::default(),
        }
    }
}

impl<K: Ord + Copy, T> CallTable<K, T> {
    /// No calls.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a call. Returns whether the driver sleeps for longer than until its deadline and has to
    /// be woken, see [`Deadlines::insert`].
    ///
    /// # Errors
    ///
    /// The value again, if there is a call with this number.
    pub fn insert(&mut self, call: K, value: T, deadline: Option<Mono>) -> Result<bool, T> {
        if self.calls.contains_key(&call) {
            return Err(value);
        }
        self.calls.insert(call, Waiting { value, deadline });
        Ok(deadline.is_some_and(|at| self.deadlines.insert(at, call)))
    }

    /// What is known of a call.
    pub fn get(&self, call: K) -> Option<&T> {
        self.calls.get(&call).map(|waiting| &waiting.value)
    }

    /// What is known of a call, to change it.
    pub fn get_mut(&mut self, call: K) -> Option<&mut T> {
        self.calls.get_mut(&call).map(|waiting| &mut waiting.value)
    }

    /// When a call has to end; nothing if it may take for ever, or is not there.
    pub fn deadline(&self, call: K) -> Option<Mono> {
        self.calls.get(&call)?.deadline
    }

    /// Takes a call out, because it ended. Nothing if it is not there: it ended before.
    pub fn take(&mut self, call: K) -> Option<T> {
        let waiting = self.calls.remove(&call)?;
        if let Some(at) = waiting.deadline {
            self.deadlines.remove(at, call);
        }
        Some(waiting.value)
    }

    /// Takes out the calls whose deadline is reached, first things first. Those that the iterator
    /// was not asked for stay.
    pub fn expire(&mut self, now: Mono) -> impl Iterator<Item = (K, T)> + use<'_, K, T> {
        std::iter::from_fn(move || {
            let call = self.deadlines.pop(now)?;
            let waiting = self.calls.remove(&call)?;
            Some((call, waiting.value))
        })
    }

    /// The first deadline, until which the driver is going to sleep: see [`Deadlines::arm`].
    pub fn arm(&mut self) -> Option<Mono> {
        self.deadlines.arm()
    }

    /// Takes out all calls, in the order of their numbers.
    pub fn drain(&mut self) -> impl Iterator<Item = (K, T)> + use<K, T> {
        let calls = std::mem::take(&mut self.calls);
        while self.deadlines.pop(Mono::MAX).is_some() {}
        calls
            .into_iter()
            .map(|(call, waiting)| (call, waiting.value))
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Whether there is none.
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

    fn table() -> CallTable<u64, &'static str> {
        let mut table = CallTable::new();
        for (call, value, deadline) in [
            (1, "to a", Some(at(30))),
            (2, "to b", Some(at(10))),
            (3, "to a", None),
            (4, "to b", Some(at(20))),
        ] {
            table.insert(call, value, deadline).unwrap();
        }
        table
    }

    #[test]
    fn calls_expire_in_the_order_of_their_deadlines() {
        let mut table = table();
        assert_eq!(table.arm(), Some(at(10)));
        let expired: Vec<_> = table.expire(at(20)).collect();
        assert_eq!(expired, [(2, "to b"), (4, "to b")]);
        assert_eq!(table.take(2), None, "a late reply finds nothing");
        assert_eq!(table.arm(), Some(at(30)));
        assert_eq!(table.take(1), Some("to a"));
        assert_eq!(table.arm(), None);
        assert_eq!(table.expire(Mono::MAX).next(), None);
        assert_eq!(table.get(3), Some(&"to a"), "without a deadline it stays");
    }

    #[test]
    fn a_number_is_used_once_at_a_time() {
        let mut table = table();
        assert_eq!(table.insert(2, "again", None), Err("again"));
        assert_eq!(table.deadline(2), Some(at(10)));
        assert_eq!(table.take(2), Some("to b"));
        assert_eq!(table.insert(2, "again", None), Ok(false));
        assert_eq!(table.deadline(2), None);
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
        assert_eq!(table.arm(), None);
        assert_eq!(table.expire(Mono::MAX).next(), None);
    }

    proptest! {
        /// Against a plain list. Every call leaves once, at the right time, and the driver, which
        /// only looks when it is woken or when its sleep ends, never oversleeps.
        #[test]
        fn it_does_what_a_list_does(steps in prop::collection::vec(any::<(u8, u8)>(), 1..200)) {
            let mut table = CallTable::new();
            let mut list: Vec<(u64, Option<Mono>)> = Vec::new();
            let mut now = 0;
            let mut alarm = table.arm();
            for (number, (what, argument)) in (1..).zip(steps) {
                match what % 4 {
                    0 | 1 => {
                        let deadline = (argument < 200).then(|| at(now + u64::from(argument)));
                        list.push((number, deadline));
                        if table.insert(number, number, deadline).unwrap() {
                            alarm = table.arm();
                        }
                    }
                    2 if !list.is_empty() => {
                        let (call, _) = list.remove(usize::from(argument) % list.len());
                        prop_assert_eq!(table.take(call), Some(call));
                    }
                    _ => now += u64::from(argument),
                }
                if alarm.is_some_and(|alarm| alarm <= at(now)) {
                    let mut expired: Vec<_> = table.expire(at(now)).map(|(call, _)| call).collect();
                    let due = |deadline: &Option<Mono>| deadline.is_some_and(|due| due <= at(now));
                    let mut expected: Vec<_> =
                        list.extract_if(.., |(_, deadline)| due(deadline)).collect();
                    expected.sort_by_key(|(_, deadline)| *deadline);
                    let expected: Vec<_> = expected.iter().map(|(call, _)| *call).collect();
                    expired.sort_unstable();
                    let mut sorted = expected;
                    sorted.sort_unstable();
                    prop_assert_eq!(expired, sorted);
                    alarm = table.arm();
                }
                let first = list.iter().filter_map(|(_, deadline)| *deadline).min();
                let oversleeps = first.is_some_and(|first| alarm.is_none_or(|alarm| alarm > first));
                prop_assert!(!oversleeps, "asleep until {alarm:?}, due at {first:?}");
                prop_assert_eq!(table.len(), list.len());
            }
        }
    }
}
