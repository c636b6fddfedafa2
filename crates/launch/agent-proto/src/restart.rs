//! Times of one restart of a node's workers.
//!
//! ```text
//!   failed ─detect─► failure_detected ─stop─► rendezvous_started
//!          ─rendezvous─► rendezvous_completed ─start─► worker_start_completed
//!          ─first step─► (a heartbeat names a step)
//! ```
//!
//! The names of the times are those of NVIDIA's resiliency extension (`ProfilingEvent`).

use std::time::Duration;

use rdzv_core::time::Wall;

/// Reason of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartCause {
    /// Workers failed.
    Failure,
    /// Nodes joined, left or restarted their workers.
    Membership,
    /// The agent of this node was killed, or panicked.
    Agent,
}

impl RestartCause {
    /// Returns the name of the reason, such as `failure`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Membership => "membership",
            Self::Agent => "agent",
        }
    }
}

/// Moment of a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartMoment {
    /// The agent noticed the reason, or began to stop the workers.
    Detected(RestartCause),
    /// The failure began this long before its detection.
    Silent(Duration),
    /// A worker exited.
    WorkerTerminated,
    /// The node began the rendezvous.
    RendezvousStarted,
    /// The round is complete.
    RendezvousCompleted,
    /// The agent began to start the workers.
    WorkerStartStarted,
    /// All workers have started.
    WorkerStartCompleted,
}

/// Times of one complete restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartTimes {
    /// Reason of the restart.
    pub reason: RestartCause,
    /// Time between the failure and its detection; zero unless workers hung.
    pub detect: Duration,
    /// Time at which the agent noticed the reason.
    pub failure_detected: Wall,
    /// Exit of the last worker; `None` if this agent saw no exit.
    pub worker_terminated: Option<Wall>,
    /// Start of the rendezvous.
    pub rendezvous_started: Wall,
    /// End of the rendezvous.
    pub rendezvous_completed: Wall,
    /// Time at which the agent began to start the workers.
    pub worker_start_started: Wall,
    /// End of the start of the last worker.
    pub worker_start_completed: Wall,
}

impl RestartTimes {
    /// Returns names and durations of the spans, in order, without the first step.
    pub fn spans(&self) -> [(&'static str, Duration); 4] {
        let started = self.rendezvous_started;
        let (completed, detected) = (self.rendezvous_completed, self.failure_detected);
        [
            ("detect", self.detect),
            ("stop", started.since(detected)),
            ("rendezvous", completed.since(started)),
            ("start", self.worker_start_completed.since(completed)),
        ]
    }

    /// Returns names and times of NVIDIA's profiling events, in order.
    pub fn times(&self) -> [(&'static str, Option<Wall>); 6] {
        [
            ("failure_detected", Some(self.failure_detected)),
            ("worker_terminated", self.worker_terminated),
            ("rendezvous_started", Some(self.rendezvous_started)),
            ("rendezvous_completed", Some(self.rendezvous_completed)),
            ("worker_start_started", Some(self.worker_start_started)),
            ("worker_start_completed", Some(self.worker_start_completed)),
        ]
    }
}

/// Collector of the times of each restart.
#[derive(Debug, Clone, Default)]
pub struct RestartLedger {
    /// `true` once the agent has begun to start workers.
    has_run: bool,
    detected: Option<(RestartCause, Wall)>,
    detect: Duration,
    terminated: Option<Wall>,
    rendezvous: [Option<Wall>; 2],
    start: Option<Wall>,
}

impl RestartLedger {
    /// Records a moment, and returns the restart that it completes.
    pub fn record(&mut self, at: Wall, moment: RestartMoment) -> Option<RestartTimes> {
        match moment {
            RestartMoment::Detected(reason) if self.has_run || reason == RestartCause::Agent => {
                let (known, _) = self.detected.get_or_insert((reason, at));
                // The stop of the workers is recorded before its reason is known.
                if *known == RestartCause::Failure {
                    *known = reason;
                }
            }
            RestartMoment::Detected(_) => {}
            RestartMoment::Silent(silent) => self.detect = silent,
            RestartMoment::WorkerTerminated => self.terminated = Some(at),
            RestartMoment::RendezvousStarted => {
                // A round may break before its workers start. The first rendezvous then counts.
                self.rendezvous[0].get_or_insert(at);
            }
            RestartMoment::RendezvousCompleted => self.rendezvous[1] = Some(at),
            RestartMoment::WorkerStartStarted => (self.start, self.has_run) = (Some(at), true),
            RestartMoment::WorkerStartCompleted => {
                let done = std::mem::take(self);
                self.has_run = true;
                return done.restart(at);
            }
        }
        None
    }

    fn restart(self, at: Wall) -> Option<RestartTimes> {
        let (reason, failure_detected) = self.detected?;
        let [started, completed] = self.rendezvous;
        Some(RestartTimes {
            reason,
            detect: self.detect,
            failure_detected,
            worker_terminated: self.terminated,
            rendezvous_started: started?,
            rendezvous_completed: completed?,
            worker_start_started: self.start?,
            worker_start_completed: at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::RestartMoment::*;
    use super::*;

    fn at(seconds: i64) -> Wall {
        Wall::from_unix_micros(seconds * 1_000_000)
    }

    fn play(
        ledger: &mut RestartLedger,
        from: i64,
        moments: &[RestartMoment],
    ) -> Option<RestartTimes> {
        let (last, others) = moments.split_last().unwrap();
        for (second, moment) in (from..).zip(others) {
            assert_eq!(ledger.record(at(second), *moment), None);
        }
        ledger.record(at(from + others.len() as i64), *last)
    }

    const BEGIN: [RestartMoment; 4] = [
        RendezvousStarted,
        RendezvousCompleted,
        WorkerStartStarted,
        WorkerStartCompleted,
    ];

    #[test]
    fn the_first_start_is_no_restart_and_each_later_one_is() {
        let mut ledger = RestartLedger::default();
        assert_eq!(play(&mut ledger, 0, &BEGIN), None);
        for from in [10, 30] {
            let stop = [
                Detected(RestartCause::Failure),
                WorkerTerminated,
                WorkerTerminated,
                Silent(Duration::from_secs(5)),
                Detected(RestartCause::Failure),
            ];
            let restart = play(&mut ledger, from, &[&stop[..], &BEGIN].concat()).unwrap();
            let spans = restart.spans().map(|(_, took)| took.as_secs());
            assert_eq!(spans, [5, 5, 1, 2]);
            let times = restart.times().map(|(_, time)| time.unwrap());
            let expected = [0, 2, 5, 6, 7, 8].map(|second| at(from + second));
            assert_eq!(times, expected);
        }
    }

    #[test]
    fn the_first_detection_and_the_first_rendezvous_count() {
        let mut ledger = RestartLedger::default();
        play(&mut ledger, 0, &BEGIN);
        let stop = [
            Detected(RestartCause::Failure),
            Detected(RestartCause::Membership),
            WorkerTerminated,
            RendezvousStarted,
            RendezvousCompleted,
        ];
        let restart = play(&mut ledger, 10, &[&stop[..], &BEGIN].concat()).unwrap();
        assert_eq!(restart.reason, RestartCause::Membership);
        assert_eq!(restart.failure_detected, at(10));
        assert_eq!(restart.rendezvous_started, at(13));
        assert_eq!(restart.rendezvous_completed, at(16));
    }

    #[test]
    fn the_next_agent_knows_no_exit_of_a_worker() {
        let mut ledger = RestartLedger::default();
        let begin = [&[Detected(RestartCause::Agent)], &BEGIN[..]].concat();
        let restart = play(&mut ledger, 10, &begin).unwrap();
        assert_eq!(restart.reason, RestartCause::Agent);
        assert_eq!(restart.worker_terminated, None);
    }
}
