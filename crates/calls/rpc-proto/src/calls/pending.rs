//! Calls that this worker made and that have not ended yet.

use std::ops::{Deref, DerefMut};

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
    /// it. It then asks [`CallTable::arm`] again.
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
}

impl<T> Deref for Pending<T> {
    type Target = CallTable<u64, T>;

    fn deref(&self) -> &Self::Target {
        &self.calls
    }
}

impl<T> DerefMut for Pending<T> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.calls
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
        assert_eq!(pending.len(), 1);
    }
}
