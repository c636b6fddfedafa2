//! Events that a worker group waits for, described for users.

use std::time::Duration;

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

/// An event that a worker group waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// Exit of workers that the agent has signalled.
    Workers {
        /// Workers that still run.
        workers: Vec<LocalRank>,
        /// Deadline: then the agent sends SIGKILL or, if it has, stops waiting.
        deadline: Mono,
        /// `true` if the agent has sent SIGKILL to these workers.
        killed: bool,
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
            (Self::Workers { killed, .. }, Self::Workers { killed: before, .. }) => {
                killed == before
            }
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
                killed: false,
                ..
            } => format!(
                "waiting for {} to exit; {left} s left; then SIGKILL follows",
                workers(running)
            ),
            Self::Workers {
                workers: running, ..
            } => format!(
                "waiting for {} to exit after SIGKILL; {left} s left; then the agent stops waiting",
                workers(running)
            ),
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
        let workers = |killed| Awaited::Workers {
            workers: vec![LocalRank(1), LocalRank(3)],
            deadline,
            killed,
        };
        assert_eq!(
            said(&workers(false)),
            "waiting for 2 workers to exit; 27 s left; then SIGKILL follows"
        );
        assert_eq!(
            said(&workers(true)),
            "waiting for 2 workers to exit after SIGKILL; 27 s left; then the agent stops waiting"
        );
        assert_eq!(
            said(&Awaited::Delay { deadline }),
            "waiting before the next attempt, as configured; 27 s left"
        );
    }

    #[test]
    fn workers_that_have_been_killed_are_another_wait() {
        let workers = |workers: &[u32], killed| Awaited::Workers {
            workers: workers.iter().copied().map(LocalRank).collect(),
            deadline: Mono::ZERO,
            killed,
        };
        assert!(workers(&[1], false).is_same(&workers(&[1, 2], false)));
        assert!(!workers(&[1], true).is_same(&workers(&[1], false)));
        assert!(!Awaited::Leftovers.is_same(&Awaited::OtherNodes));
    }
}
