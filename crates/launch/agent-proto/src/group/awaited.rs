//! Events that a worker group waits for, described for users.

use std::time::Duration;

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

/// Step in which a group stops workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopStep {
    /// Workers that recover leave their function (`--in-process`); SIGKILL follows.
    Abort,
    /// The workers have only received the notice of preemption; SIGTERM follows.
    Notice,
    /// The workers have received a signal; SIGKILL follows.
    Signal,
    /// The workers have received SIGKILL; then the agent stops waiting.
    Kill,
}

/// An event that a worker group waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// Workers that the agent stops.
    Workers {
        /// Workers that have not exited; in an abort, those in their function.
        workers: Vec<LocalRank>,
        /// End of the wait.
        deadline: Mono,
        /// The last request to the workers. It determines what follows.
        step: StopStep,
    },
    /// Exit of processes that workers left behind.
    Leftovers,
    /// The pause before the next attempt.
    Delay {
        /// End of the delay.
        deadline: Mono,
    },
    /// Success of the workers on the other nodes.
    OtherNodes,
}

impl Awaited {
    /// `true` if this is the same wait as `before`, perhaps with fewer workers.
    pub fn is_same(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Workers { step, .. }, Self::Workers { step: before, .. }) => step == before,
            _ => std::mem::discriminant(self) == std::mem::discriminant(before),
        }
    }

    /// Returns the deadline; `None` for leftovers and other nodes.
    pub fn deadline(&self) -> Option<Mono> {
        match self {
            Self::Workers { deadline, .. } | Self::Delay { deadline } => Some(*deadline),
            Self::Leftovers | Self::OtherNodes => None,
        }
    }

    /// Returns one sentence; `workers` formats local ranks (`ranks 0-2, 5`).
    pub fn sentence(&self, now: Mono, workers: impl FnOnce(&[LocalRank]) -> String) -> String {
        let left = self
            .deadline()
            .map_or(Duration::ZERO, |deadline| deadline.since(now));
        let left = left.as_secs_f64().ceil();
        match self {
            Self::Workers {
                workers: running,
                step,
                ..
            } => {
                let (what, then) = match step {
                    StopStep::Abort => ("leave the round", "SIGKILL follows"),
                    StopStep::Notice => ("exit after the notice", "SIGTERM follows"),
                    StopStep::Signal => ("exit", "SIGKILL follows"),
                    StopStep::Kill => ("exit after SIGKILL", "the agent stops waiting"),
                };
                let workers = workers(running);
                format!("waiting for {workers} to {what}; {left} s left; then {then}")
            }
            Self::Leftovers => "waiting for processes that workers left behind to exit".to_owned(),
            Self::Delay { .. } => {
                format!("waiting before the next attempt, as configured; {left} s left")
            }
            Self::OtherNodes => {
                "the workers of this node have succeeded; waiting for the workers of the other \
                 nodes"
                    .to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(awaited: &Awaited) -> String {
        awaited.sentence(Mono::ZERO, |workers| format!("{} workers", workers.len()))
    }

    #[test]
    fn a_wait_is_a_sentence_with_the_time_that_is_left() {
        let deadline = Mono::ZERO + Duration::from_millis(26_900);
        for (step, sentence) in [
            (
                StopStep::Abort,
                "waiting for 2 workers to leave the round; 27 s left; then SIGKILL follows",
            ),
            (
                StopStep::Notice,
                "waiting for 2 workers to exit after the notice; 27 s left; then SIGTERM follows",
            ),
            (
                StopStep::Signal,
                "waiting for 2 workers to exit; 27 s left; then SIGKILL follows",
            ),
            (
                StopStep::Kill,
                "waiting for 2 workers to exit after SIGKILL; 27 s left; then the agent stops \
                 waiting",
            ),
        ] {
            let workers = vec![LocalRank(1), LocalRank(3)];
            let awaited = Awaited::Workers {
                workers,
                deadline,
                step,
            };
            assert_eq!(said(&awaited), sentence);
        }
        assert_eq!(
            said(&Awaited::Delay { deadline }),
            "waiting before the next attempt, as configured; 27 s left"
        );
    }

    #[test]
    fn workers_that_have_been_killed_are_another_wait() {
        let workers = |workers: &[u32], step| Awaited::Workers {
            workers: workers.iter().copied().map(LocalRank).collect(),
            deadline: Mono::ZERO,
            step,
        };
        let [signal, kill] = [StopStep::Signal, StopStep::Kill];
        assert!(workers(&[1], signal).is_same(&workers(&[1, 2], signal)));
        assert!(!workers(&[1], kill).is_same(&workers(&[1], signal)));
        assert!(!Awaited::Leftovers.is_same(&Awaited::OtherNodes));
    }
}
