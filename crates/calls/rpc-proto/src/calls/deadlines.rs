//! Deadlines in order, for a shell that sleeps until the first.

use std::collections::BTreeSet;

use rdzv_core::time::Mono;

/// Deadlines of calls, ordered.
///
/// The driver sleeps until what [`arm`](Self::arm) told it. Only a deadline before that is worth
/// waking it for; when calls end, it is not woken at all and finds nothing to do once. So calls
/// that follow one another and have the same time to end cost one wake in that time, not one each.
#[derive(Debug, Clone)]
pub struct Deadlines<K> {
    ordered: BTreeSet<(Mono, K)>,
    /// When the driver will wake by itself.
    armed: Option<Mono>,
}

impl<K> Default for Deadlines<K> {
    fn default() -> Self {
        Self {
            ordered: BTreeSet::new(),
            armed: None,
        }
    }
}

impl<K: Ord + Copy> Deadlines<K> {
    /// No deadlines.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the deadline of a call. Returns whether the driver has to be woken, because it sleeps
    /// for longer than until then; it calls [`arm`](Self::arm) next.
    #[must_use]
    pub fn insert(&mut self, at: Mono, call: K) -> bool {
        self.ordered.insert((at, call));
        let too_late = self.armed.is_none_or(|armed| at < armed);
        if too_late {
            // The driver is being told: no second wake for a later one.
            self.armed = Some(at);
        }
        too_late
    }

    /// Removes the deadline of a call that ended before it.
    pub fn remove(&mut self, at: Mono, call: K) {
        self.ordered.remove(&(at, call));
    }

    /// Removes and returns the first call whose deadline is reached.
    pub fn pop(&mut self, now: Mono) -> Option<K> {
        let (at, _) = self.ordered.first()?;
        if *at > now {
            return None;
        }
        self.ordered.pop_first().map(|(_, call)| call)
    }

    /// The first deadline: until then the driver is going to sleep, or for ever if there is none.
    pub fn arm(&mut self) -> Option<Mono> {
        self.armed = self.ordered.first().map(|(at, _)| *at);
        self.armed
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ordered.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ordered.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(millis: u64) -> Mono {
        Mono::from_origin(Duration::from_millis(millis))
    }

    #[test]
    fn they_are_reached_in_their_order() {
        let mut deadlines = Deadlines::new();
        for (when, call) in [(30, 1), (10, 2), (20, 3), (20, 4)] {
            let _ = deadlines.insert(at(when), call);
        }
        assert_eq!(deadlines.pop(at(9)), None);
        assert_eq!(deadlines.pop(at(10)), Some(2));
        assert_eq!(deadlines.pop(at(10)), None);
        deadlines.remove(at(20), 4);
        assert_eq!(deadlines.pop(at(99)), Some(3));
        assert_eq!(deadlines.pop(at(99)), Some(1));
        assert_eq!(deadlines.pop(at(99)), None);
        assert!(deadlines.is_empty());
    }

    #[test]
    fn only_a_deadline_before_the_sleep_ends_wakes() {
        let mut deadlines = Deadlines::new();
        assert!(deadlines.insert(at(60), 1), "it sleeps for ever");
        assert!(!deadlines.insert(at(70), 2), "it has just been told of 60");
        assert_eq!(deadlines.arm(), Some(at(60)));
        assert!(!deadlines.insert(at(60), 3));
        assert!(deadlines.insert(at(59), 4));
        assert_eq!(deadlines.arm(), Some(at(59)));
    }

    #[test]
    fn a_thousand_short_calls_wake_once() {
        let mut deadlines = Deadlines::new();
        let mut wakes = 0;
        for call in 0..1000 {
            let deadline = at(call) + Duration::from_secs(60);
            if deadlines.insert(deadline, call) {
                wakes += 1;
                deadlines.arm();
            }
            deadlines.remove(deadline, call);
        }
        assert_eq!(wakes, 1);
        // At the first deadline it wakes, finds nothing, and sleeps for ever.
        assert_eq!(deadlines.pop(at(60_000)), None);
        assert_eq!(deadlines.arm(), None);
        assert!(deadlines.insert(at(99_000), 1));
    }
}
