//! Copies of one signal for the workers: some schedulers send it to the launcher, some to every process of the job.
//!
//! ```text
//!   scheduler ── USR1 ─► keeper ── USR1 ─► guard ── URG ─► agent ── USR1 ─► workers      (to the launcher)
//!             ── USR1 ─► keeper, guard, agent, and each worker                            (to every process)
//! ```
//!
//! The guard passes it on as another signal, so that the agent can tell the two apart: if it gets
//! both, its workers have theirs already. It waits a moment for the second one.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Time between the copies of one signal, on a machine that has much to do.
const APART: Duration = Duration::from_millis(100);

/// The way on which a copy has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the agent itself.
    Itself,
    /// Through the guard.
    Guard,
    /// To another node, whose agent says so.
    OtherNode,
}

/// A signal with all its copies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) signal: i32,
    /// Whether it was sent to every process of the node.
    pub(crate) workers_have_it: bool,
    /// Whether it has come to this node, and not only to another one.
    pub(crate) here: bool,
}

/// The copies of the last signal of each number.
#[derive(Debug, Default)]
pub(crate) struct SignalCopies(BTreeMap<i32, Copies>);

#[derive(Debug)]
struct Copies {
    since: Instant,
    itself: bool,
    by_guard: bool,
    /// Whether the signal was taken; late copies are still no other one.
    taken: bool,
}

impl SignalCopies {
    /// Notes a copy.
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

    /// When the next signal can be taken.
    pub(crate) fn due(&self) -> Option<Instant> {
        let open = self.0.values().filter(|copies| !copies.taken);
        open.map(|copies| match copies.itself && copies.by_guard {
            true => copies.since,
            false => copies.since + APART,
        })
        .min()
    }

    /// Takes the signal that is due.
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
