//! Calls that this worker made and that have not ended yet.

use super::table::CallTable;
use rdzv_core::time::Mono;

/// Calls that this worker made: it gives them their numbers, from 1, and never one twice.
#[derive(Debug, Clone)]
pub struct Pending<T> {
    next: u64,
    calls: CallTable<u64, T>,
}

/// A call that has its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Begun {
    /// The number, for the header of its frame.
    pub call: u64,
    /// Whether whoever sleeps until the first deadline has to be woken, because this one is before
    /// it. It then asks [`Pending::arm`] again.
    pub wake: bool,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self {
            next: 1,
            calls: CallTable::new(),
        }
    }
}

impl<T> Pending<T> {
    /// No calls yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a call and gives it a number.
    pub fn insert(&mut self, value: T, deadline: Option<Mono>) -> Begun {
        let call = self.next;
        self.next += 1;
        let inserted = self.calls.insert(call, value, deadline);
        let wake = inserted.is_ok_and(|wake| wake);
        Begun { call, wake }
    }

    /// What is known of a call.
    pub fn get(&self, call: u64) -> Option<&T> {
        self.calls.get(call)
    }

    /// What is known of a call, to change it.
    pub fn get_mut(&mut self, call: u64) -> Option<&mut T> {
        self.calls.get_mut(call)
    }

    /// Takes a call out, because it ended. Nothing if it ended before: a late reply is for nobody.
    pub fn take(&mut self, call: u64) -> Option<T> {
        self.calls.take(call)
    }

    /// Takes out the calls whose deadline is reached, first things first.
    pub fn expire(&mut self, now: Mono) -> impl Iterator<Item = (u64, T)> + use<'_, T> {
        self.calls.expire(now)
    }

    /// The first deadline, until which the driver is going to sleep; for ever if there is none.
    pub fn arm(&mut self) -> Option<Mono> {
        self.calls.arm()
    }

    /// Takes out all calls.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, T)> + use<T> {
        self.calls.drain()
    }

    /// Takes out the calls that `which` is true for: those to a peer that is lost.
    pub fn take_where(&mut self, which: impl FnMut(&T) -> bool) -> Vec<(u64, T)> {
        self.calls.take_where(which)
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

    use super::*;

    #[test]
    fn numbers_begin_at_1_and_never_come_again() {
        let mut pending = Pending::new();
        assert_eq!(
            pending.insert('a', None),
            Begun {
                call: 1,
                wake: false
            }
        );
        assert_eq!(pending.take(1), Some('a'));
        assert_eq!(pending.take(1), None);
        assert_eq!(pending.insert('b', None).call, 2);
        assert_eq!(pending.drain().collect::<Vec<_>>(), [(2, 'b')]);
        assert_eq!(pending.insert('c', None).call, 3);
        assert_eq!(pending.len(), 1);
    }

    #[test]
    fn only_an_earlier_deadline_wakes() {
        let at = |seconds| Some(Mono::from_origin(Duration::from_secs(seconds)));
        let mut pending = Pending::new();
        assert!(pending.insert('a', at(60)).wake);
        assert!(!pending.insert('b', at(61)).wake);
        assert!(pending.insert('c', at(5)).wake);
        assert_eq!(pending.arm(), at(5));
        let expired: Vec<_> = pending.expire(at(60).unwrap()).collect();
        assert_eq!(expired, [(3, 'c'), (1, 'a')]);
        assert_eq!(pending.arm(), at(61));
        assert_eq!(pending.take_where(|value| *value == 'b'), [(2, 'b')]);
        assert!(pending.is_empty());
    }
}
