//! Copies of one signal for the workers.
//!
//! Some schedulers send the signal to the launcher, some to every process of the job.
//!
//! ```text
//!   to the launcher:   scheduler ─ USR1 ─► keeper ─ USR1 ─► guard ─ URG ─► agent ─ USR1 ─► workers
//!   to every process:  scheduler ── USR1 ─► keeper, guard, agent, and each worker
//! ```
//!
//! The guard passes the signal on as a different signal, so the agent can tell the two apart. If
//! the agent receives both, its workers have received theirs already. The agent waits up to 100 ms
//! for the second one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Maximum time between the copies of one signal, on a busy machine.
const APART: Duration = Duration::from_millis(100);

/// Path on which a copy has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Sent to the agent itself.
    Itself,
    /// Passed on by the guard.
    Guard,
    /// Sent to another node, whose agent reported it.
    OtherNode,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) signal: i32,
    /// `true` if every process of the node received the signal.
    pub(crate) workers_have_it: bool,
    /// `true` if this node received the signal, `false` if only another node did.
    pub(crate) here: bool,
}

/// Copies of the last signal, by signal number.
#[derive(Debug, Default)]
pub(crate) struct SignalCopies(BTreeMap<i32, Copies>);

#[derive(Debug)]
struct Copies {
    since: Instant,
    itself: bool,
    by_guard: bool,
    /// `true` if the signal was taken; late copies do not count as a new signal.
    taken: bool,
}

impl SignalCopies {
    pub(crate) fn note(&mut self, signal: i32, way: Way, now: Instant) {
        let is_over =
            |copies: &Copies| copies.taken && now.duration_since(copies.since) > 2 * APART;
        if self.0.get(&signal).is_some_and(is_over) {
            self.0.remove(&signal);
        }
        let copies = self.0.entry(signal).or_insert(Copies {
            since: now,
            itself: false,
            by_guard: false,
            taken: false,
        });
        match way {
            Way::Itself => copies.itself = true,
            Way::Guard => copies.by_guard = true,
            Way::OtherNode => {}
        }
    }

    pub(crate) fn due(&self) -> Option<Instant> {
        let open = self.0.values().filter(|copies| !copies.taken);
        open.map(|copies| {
            if copies.itself && copies.by_guard {
                copies.since
            } else {
                copies.since + APART
            }
        })
        .min()
    }

    pub(crate) fn take(&mut self, now: Instant) -> Option<Taken> {
        let mut all = self.0.iter_mut();
        let (signal, copies) = all.find(|(_, copies)| {
            let both = copies.itself && copies.by_guard;
            !copies.taken && (both || now.duration_since(copies.since) >= APART)
        })?;
        copies.taken = true;
        Some(Taken {
            signal: *signal,
            workers_have_it: copies.itself && copies.by_guard,
            here: copies.itself || copies.by_guard,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(signal: i32, workers_have_it: bool, here: bool) -> Option<Taken> {
        Some(Taken {
            signal,
            workers_have_it,
            here,
        })
    }

    fn seen(copies: &[(u64, Way)], takes: &[u64]) -> Vec<Option<Taken>> {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut all = SignalCopies::default();
        for (millis, way) in copies {
            all.note(10, *way, at(*millis));
        }
        takes.iter().map(|millis| all.take(at(*millis))).collect()
    }

    #[test]
    fn a_signal_to_the_launcher_or_to_the_agent_alone_is_passed_on() {
        for way in [Way::Guard, Way::Itself] {
            let seen = seen(&[(0, way)], &[50, 100, 101]);
            assert_eq!(seen, [None, taken(10, false, true), None]);
        }
    }

    #[test]
    fn workers_have_a_signal_that_came_to_every_process() {
        let copies = [(0, Way::Itself), (1, Way::Guard), (2, Way::Guard)];
        assert_eq!(seen(&copies, &[2, 150]), [taken(10, true, true), None]);
    }

    #[test]
    fn word_of_another_node_waits_for_the_signal_that_may_come_here_too() {
        let copies = [(0, Way::OtherNode), (60, Way::Itself), (61, Way::Guard)];
        assert_eq!(seen(&copies, &[61]), [taken(10, true, true)]);
        let alone = seen(&[(0, Way::OtherNode)], &[99, 100]);
        assert_eq!(alone, [None, taken(10, false, false)]);
    }

    #[test]
    fn a_late_copy_is_no_other_signal_and_the_same_signal_later_is_one() {
        let begin = Instant::now();
        let at = |millis| begin + Duration::from_millis(millis);
        let mut all = SignalCopies::default();
        all.note(10, Way::Guard, at(0));
        assert_eq!(all.due(), Some(at(100)));
        assert_eq!(all.take(at(100)), taken(10, false, true));
        all.note(10, Way::Itself, at(150));
        assert_eq!((all.due(), all.take(at(400))), (None, None));
        all.note(10, Way::Guard, at(1000));
        all.note(12, Way::Guard, at(1001));
        assert_eq!(all.take(at(1100)), taken(10, false, true));
        assert_eq!(all.take(at(1101)), taken(12, false, true));
    }
}
