//! The status row, which shows the current phase of the run.

use std::time::Duration;

use rdzv_core::time::Mono;

use super::part::{Part, fit, sentence};
use crate::quantity::{clock, count};
use crate::stop::Stop;

/// The state of a run for its status row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// Phase of the run.
    pub phase: Phase,
    /// Beginning of the run.
    pub began: Mono,
    /// Number of workers of the job; 0 until it is known.
    pub workers: u32,
    /// Number of nodes of the job; 0 until it is known.
    pub nodes: u32,
    /// Number of restarts that have been used.
    pub restarts: u32,
    /// `--max-restarts`.
    pub most_restarts: u32,
    /// The wait of this phase, once it takes long.
    pub awaited: Option<AwaitedText>,
}

/// Something that the run waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AwaitedText {
    /// A sentence whose parts are separated by `; `.
    /// Parts about the remaining time end with ` left`.
    pub text: String,
    /// End of the wait.
    pub deadline: Option<Mono>,
}

impl AwaitedText {
    /// Returns the parts of a row, most important first.
    /// If the wait has a deadline, one part is the remaining time.
    fn parts(&self, now: Mono) -> Vec<Part> {
        // The text contains the remaining time at the time of writing, which is out of date.
        let is_time = |part: &&str| self.deadline.is_some() && part.ends_with(" left");
        let mut parts = sentence(self.text.split("; ").filter(|part| !is_time(part)));
        if let Some(deadline) = self.deadline {
            let left = Part::kept(format!("{} left", clock(deadline.since(now))));
            parts.insert(parts.len().min(1), left);
        }
        parts
    }
}

/// The phases of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Phase {
    /// The run waits for nodes, or for the store.
    Waiting,
    /// Workers are being started.
    Starting,
    /// Workers run.
    Running,
    /// A signal has requested the end of the run.
    Stopping {
        /// Number of the signal.
        signal: i32,
        /// Number of requests until now.
        requests: u32,
        /// Ranks of the workers that are still running.
        left: Vec<u32>,
        /// Time of SIGKILL.
        deadline: Mono,
        /// Time that the first request grants.
        shutdown_timeout: Duration,
    },
    /// The agent stops the remaining workers before the next attempt.
    Restarting,
    /// The workers have exited.
    Finishing,
}

impl Status {
    /// Returns the row in at most `width` columns.
    /// To fit, the row omits node names, then advice, and then cuts its first part.
    pub fn row(&self, now: Mono, width: usize) -> String {
        let mut parts = Vec::new();
        let mut phase = |text: &str| parts.push(Part::kept(text.to_owned()));
        let left = |deadline: Mono| deadline.since(now);
        match &self.phase {
            Phase::Waiting | Phase::Starting if self.awaited.is_some() => {}
            Phase::Waiting => phase("waiting for the other nodes"),
            Phase::Starting => phase("starting"),
            Phase::Running => phase("running"),
            Phase::Restarting => phase("restarting"),
            Phase::Finishing => phase("finishing"),
            Phase::Stopping {
                signal,
                requests,
                left: ranks,
                deadline,
                shutdown_timeout,
            } => {
                let stop = Stop {
                    signal: *signal,
                    request: *requests,
                    ranks,
                    left: left(*deadline),
                    shutdown_timeout: *shutdown_timeout,
                };
                parts.extend(sentence(stop.sentence().split("; ")));
            }
        }
        let shown = self.awaited.as_ref().filter(|_| !self.is_stopping());
        parts.extend(shown.map_or_else(Vec::new, |awaited| awaited.parts(now)));
        if shown.is_none()
            && self.phase != Phase::Waiting
            && !self.is_stopping()
            && self.workers > 0
        {
            let workers = count(self.workers, "worker");
            parts.push(Part::kept(match self.nodes {
                0 | 1 => workers,
                nodes => format!("{workers} on {}", count(nodes, "node")),
            }));
        }
        if self.restarts > 0 || matches!(self.phase, Phase::Restarting) {
            parts.push(Part::kept(format!(
                "restart {} of {}",
                self.restarts, self.most_restarts
            )));
        }
        let elapsed = now.since(self.began);
        let step = clock_step(elapsed).as_secs();
        let elapsed = Duration::from_secs(elapsed.as_secs() / step * step);
        parts.push(Part::kept(clock(elapsed)));
        fit(parts, width)
    }

    fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Stopping { .. })
    }

    /// Returns the next time at which the row changes although no event occurs.
    ///
    /// The clock of a long run has larger steps, so that an unattended row costs little.
    pub fn changes_at(&self, now: Mono) -> Mono {
        let elapsed = now.since(self.began);
        let step = clock_step(elapsed);
        let steps = u32::try_from(elapsed.as_secs() / step.as_secs()).unwrap_or(u32::MAX - 1);
        let clock = self.began + step * (steps + 1);
        let deadline = match &self.phase {
            Phase::Stopping { deadline, .. } => Some(*deadline),
            _ => self.awaited.as_ref().and_then(|awaited| awaited.deadline),
        };
        let left = deadline.map_or(Duration::ZERO, |deadline| deadline.since(now));
        let second = Duration::from_secs(1);
        // The remaining time is cut to whole seconds, except in the last 10 s after a signal.
        let countdown = (!left.is_zero()).then(|| {
            let within = Duration::from_nanos(u64::from(left.subsec_nanos()) + 1);
            now + within.min(second)
        });
        countdown.map_or(clock, |countdown| countdown.min(clock))
    }
}

/// Returns the step of the clock that shows the duration of the run.
fn clock_step(elapsed: Duration) -> Duration {
    Duration::from_secs(match elapsed.as_secs() {
        0..10 => 1,
        10..600 => 10,
        _ => 60,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: usize = 200;

    fn status(phase: Phase, began: Mono) -> Status {
        Status {
            phase,
            began,
            workers: 4,
            nodes: 2,
            restarts: 0,
            most_restarts: 3,
            awaited: None,
        }
    }

    #[test]
    fn a_row_says_what_goes_on() {
        let began = Mono::ZERO;
        let after = |seconds| began + Duration::from_secs(seconds);
        let row = |phase, seconds| status(phase, began).row(after(seconds), WIDE);
        assert_eq!(
            row(Phase::Waiting, 2),
            "waiting for the other nodes \u{b7} 0:02"
        );
        assert_eq!(
            row(Phase::Running, 4100),
            "running \u{b7} 4 workers on 2 nodes \u{b7} 1:08:00"
        );
        let stopping = Phase::Stopping {
            signal: 2,
            requests: 1,
            left: vec![1, 3],
            deadline: after(30),
            shutdown_timeout: Duration::from_secs(30),
        };
        assert_eq!(
            row(stopping, 2),
            "Ctrl-C: ranks 1, 3 have 28 s to exit \u{b7} a second Ctrl-C leaves 7.5 s, a third kills them \
             \u{b7} 0:02"
        );
    }

    #[test]
    fn a_row_says_what_is_awaited() {
        let began = Mono::ZERO;
        let after = |seconds| began + Duration::from_secs(seconds);
        let row = |phase, text: &str, deadline, seconds| {
            let text = text.to_owned();
            let awaited = Some(AwaitedText { text, deadline });
            let status = Status {
                awaited,
                ..status(phase, began)
            };
            status.row(after(seconds), WIDE)
        };
        let nodes = "waiting for nodes: 2 of 4 (node-a, node-c); 9:59 left; start the same command on the other nodes";
        assert_eq!(
            row(Phase::Waiting, nodes, Some(after(600)), 100),
            "waiting for nodes: 2 of 4 (node-a, node-c) \u{b7} 8:20 left \u{b7} start the same command on \
             the other nodes \u{b7} 1:40"
        );
        assert_eq!(
            row(Phase::Waiting, "in reserve: 2 nodes", None, 100),
            "in reserve: 2 nodes \u{b7} 1:40"
        );
        let workers = "waiting for rank 3 to exit; 27 s left; then SIGKILL follows";
        assert_eq!(
            row(Phase::Restarting, workers, Some(after(30)), 5),
            "restarting \u{b7} waiting for rank 3 to exit \u{b7} 0:25 left \u{b7} then SIGKILL \
             follows \u{b7} restart 0 of 3 \u{b7} 0:05"
        );
    }

    #[test]
    fn a_narrow_row_keeps_its_times() {
        let after = |seconds| Mono::ZERO + Duration::from_secs(seconds);
        let row = |text: &str, width| {
            let (text, deadline) = (text.to_owned(), Some(after(900)));
            let awaited = Some(AwaitedText { text, deadline });
            let status = Status {
                awaited,
                ..status(Phase::Waiting, Mono::ZERO)
            };
            status.row(after(4), width)
        };
        let rows = |text: &str| {
            let rows = [119, 105, 79, 59, 39, 19].map(|width| row(text, width));
            rows.join("\n")
        };
        assert_eq!(
            rows(
                "waiting for nodes: 3 of 4 (node-a, node-b, 1 more); 15:00 left; start the same \
                 command on the other nodes"
            ),
            "waiting for nodes: 3 of 4 (node-a, node-b, 1 more) \u{b7} 14:56 left \u{b7} start the same command on the other nodes \u{b7} 0:04
waiting for nodes: 3 of 4 \u{b7} 14:56 left \u{b7} start the same command on the other nodes \u{b7} 0:04
waiting for nodes: 3 of 4 (node-a, node-b, 1 more) \u{b7} 14:56 left \u{b7} 0:04
waiting for nodes: 3 of 4 \u{b7} 14:56 left \u{b7} 0:04
waiting for \u{2026} \u{b7} 14:56 left \u{b7} 0:04
\u{2026} \u{b7} 14:56 left \u{b7} 0:04"
        );
        // Text that is not a list of names stays, as far as it fits.
        assert_eq!(
            rows("no store has answered at 10.0.0.1:29400 (Connection refused); 15:00 left"),
            "\
no store has answered at 10.0.0.1:29400 (Connection refused) \u{b7} 14:56 left \u{b7} 0:04
no store has answered at 10.0.0.1:29400 (Connection refused) \u{b7} 14:56 left \u{b7} 0:04
no store has answered at 10.0.0.1:29400 (Connection \u{2026} \u{b7} 14:56 left \u{b7} 0:04
no store has answered at \u{2026} \u{b7} 14:56 left \u{b7} 0:04
no store has \u{2026} \u{b7} 14:56 left \u{b7} 0:04
\u{2026} \u{b7} 14:56 left \u{b7} 0:04"
        );
        let stopping = status(
            Phase::Stopping {
                signal: 2,
                requests: 1,
                left: vec![1, 3],
                deadline: after(30),
                shutdown_timeout: Duration::from_secs(30),
            },
            Mono::ZERO,
        );
        assert_eq!(
            stopping.row(after(2), 79),
            "Ctrl-C: ranks 1, 3 have 28 s to exit \u{b7} a second Ctrl-C leaves 7.5 s \u{b7} 0:02"
        );
    }

    #[test]
    fn a_row_changes_when_its_clock_does() {
        let began = Mono::ZERO + Duration::from_millis(300);
        let running = status(Phase::Running, began);
        let mut changes = Vec::new();
        let mut now = began;
        for _ in 0..15 {
            let next = running.changes_at(now);
            assert_ne!(running.row(now, WIDE), running.row(next, WIDE));
            let before = next.since(Mono::ZERO).checked_sub(Duration::from_nanos(1));
            assert_eq!(
                running.row(now, WIDE),
                running.row(Mono::from_origin(before.unwrap()), WIDE)
            );
            now = next;
            changes.push(now.since(began).as_secs());
        }
        assert_eq!(changes, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 40, 50, 60]);
        let hour = began + Duration::from_secs(3600);
        assert_eq!(running.changes_at(hour), hour + Duration::from_secs(60));

        let deadline = Some(hour + Duration::from_millis(2_500));
        let waiting = Status {
            awaited: Some(AwaitedText {
                text: "waiting".to_owned(),
                deadline,
            }),
            ..status(Phase::Waiting, began)
        };
        let next = waiting.changes_at(hour);
        assert!(
            waiting.row(hour, WIDE).contains("0:02 left"),
            "{}",
            waiting.row(hour, WIDE)
        );
        assert!(
            waiting.row(next, WIDE).contains("0:01 left"),
            "{}",
            waiting.row(next, WIDE)
        );
        assert!(next.since(hour) < Duration::from_millis(501));
    }

    #[test]
    fn restarts_are_counted_from_the_first_on() {
        let began = Mono::ZERO;
        let status = Status {
            workers: 1,
            nodes: 1,
            restarts: 1,
            ..status(Phase::Running, began)
        };
        assert_eq!(
            status.row(began, WIDE),
            "running \u{b7} 1 worker \u{b7} restart 1 of 3 \u{b7} 0:00"
        );
    }
}
