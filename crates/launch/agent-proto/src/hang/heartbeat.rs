//! Heartbeats: one line per beat, and a limit on the silence after it.
//!
//! A worker writes lines to its own named pipe. The first word of a line names the phase that the
//! worker enters. The rest is a note, which rdzv reports if no further beat follows:
//!
//! ```text
//! step 1200
//! checkpoint
//! step 1201
//! ```
//!
//! The limit of that phase applies until the next beat. Before its first beat a worker is in the
//! phase `init`.
//!
//! A beat of the phase `step` is also a mark for the comparison of workers
//! ([`straggler`](super::straggler)), and counts for the [goodput](crate::goodput). A step without
//! a number counts as the worker's next step. A second word of the note is the time of the beat on
//! the node's monotonic clock, in seconds. Without this word, or if that time is in the future or
//! at least 10 s ago, the time at which the agent reads the beat applies.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::escape::escape_bytes;
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

use super::straggler::StepMarks;

/// Phase before the first beat.
pub const INIT: &str = "init";

/// Phase of a worker that has finished; has no limit unless it is named.
pub const DONE: &str = "done";

/// Phase whose beats are marks of the comparison of workers.
const STEP: &str = "step";

/// Phase of a beat that is an empty line.
const UNNAMED: &str = "beat";

/// Longest stored line, in characters.
const MOST_KEPT: usize = 100;

/// Maximum age of a beat by its own time.
const OLDEST: Duration = Duration::from_secs(10);

/// Limits on a worker's silence, by phase.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HeartbeatLimits {
    default: Option<Duration>,
    phases: BTreeMap<String, Duration>,
}

impl HeartbeatLimits {
    /// Parses limits such as `30`, `init=600,step=30` or `30,init=600`.
    ///
    /// A number without a name applies to all phases that are not named. The exceptions are `init`
    /// and `done`, which have no limit unless they are named. Limits are in seconds and may have
    /// fractions; 0 means no limit.
    ///
    /// # Errors
    ///
    /// Returns the fault in one sentence.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut limits = Self::default();
        let mut seen_default = false;
        for part in text.split(',') {
            let (phase, seconds) = match part.split_once('=') {
                Some((phase, seconds)) => (Some(phase.trim()), seconds),
                None => (None, part),
            };
            let limit = seconds
                .trim()
                .parse()
                .ok()
                .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
                .ok_or_else(|| {
                    format!("{part:?} is neither a number of seconds nor PHASE=SECONDS")
                })?;
            match phase {
                None if seen_default => {
                    return Err(format!("{part:?} is a second limit for all phases"));
                }
                None => {
                    seen_default = true;
                    limits.default = Some(limit).filter(|limit| !limit.is_zero());
                }
                Some(phase) if phase.is_empty() || phase.contains(char::is_whitespace) => {
                    return Err(format!("{phase:?} is not a phase: a phase is one word"));
                }
                Some(phase) => {
                    if limits.phases.insert(phase.to_owned(), limit).is_some() {
                        return Err(format!("phase {phase:?} is specified twice"));
                    }
                }
            }
        }
        Ok(limits)
    }

    /// Returns the limit of a phase, if it has one.
    pub fn of(&self, phase: &str) -> Option<Duration> {
        let limit = match self.phases.get(phase) {
            Some(limit) => Some(*limit),
            None if phase == INIT || phase == DONE => None,
            None => self.default,
        };
        limit.filter(|limit| !limit.is_zero())
    }
}

/// A missed heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    /// The worker.
    pub local_rank: LocalRank,
    /// The phase that the worker is in.
    pub phase: String,
    /// Note of the last beat; often empty.
    pub note: String,
    /// Time since the last beat, or since the start of the worker.
    pub silent: Duration,
    /// Limit of the phase.
    pub limit: Duration,
}

/// Step that a beat names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BeatStep {
    /// Number of the step.
    pub number: u64,
    /// `true` if the beat contains the number.
    pub is_numbered: bool,
    /// Time since the worker sent the beat, as far as is known.
    pub age: Duration,
}

#[derive(Debug)]
struct Beat {
    phase: String,
    note: String,
    at: Mono,
    /// `true` if the silence after this beat was reported.
    missed: bool,
    steps: StepMarks,
}

/// The beats of the workers of one node.
#[derive(Debug, Default)]
pub struct Heartbeats {
    limits: HeartbeatLimits,
    workers: BTreeMap<LocalRank, Beat>,
}

impl Heartbeats {
    /// Creates a watch without workers.
    pub fn new(limits: HeartbeatLimits) -> Self {
        Self {
            limits,
            workers: BTreeMap::new(),
        }
    }

    /// Adds a started worker, in phase `init`.
    pub fn started(&mut self, now: Mono, local_rank: LocalRank) {
        let beat = Beat {
            phase: INIT.to_owned(),
            note: String::new(),
            at: now,
            missed: false,
            steps: StepMarks::default(),
        };
        self.workers.insert(local_rank, beat);
    }

    /// Removes a worker that has exited.
    pub fn ended(&mut self, local_rank: LocalRank) {
        self.workers.remove(&local_rank);
    }

    /// Removes all workers.
    pub fn clear(&mut self) {
        self.workers.clear();
    }

    /// Records a beat, which is one line of a worker.
    /// Returns the step that the beat names, and the time since the previous beat if
    /// [`Heartbeats::missed`] has reported that silence.
    ///
    /// `clock` is the node's monotonic clock in seconds at the time `now`.
    pub fn beat(
        &mut self,
        now: Mono,
        clock: f64,
        local_rank: LocalRank,
        line: &[u8],
    ) -> (Option<BeatStep>, Option<Duration>) {
        let Some(beat) = self.workers.get_mut(&local_rank) else {
            return (None, None);
        };
        let text: String = escape_bytes(line).chars().take(MOST_KEPT).collect();
        let text = text.trim();
        let (phase, mut note) = text.split_once(' ').unwrap_or((text, ""));
        let phase = if phase.is_empty() { UNNAMED } else { phase };
        let mut step = None;
        if phase == STEP {
            let mut words = note.split_whitespace();
            note = words.next().unwrap_or_default();
            let number = note.parse().ok();
            let sent = words.next().and_then(|word| word.parse::<f64>().ok());
            let age = sent.map_or(0.0, |sent| clock - sent);
            let age = Duration::try_from_secs_f64(age).unwrap_or_default();
            // A worker in another time namespace has another clock.
            let age = if age < OLDEST { age } else { Duration::ZERO };
            let sent = Mono::ZERO + now.since(Mono::ZERO + age);
            step = Some(BeatStep {
                number: beat.steps.add(number, sent),
                is_numbered: number.is_some(),
                age,
            });
        }
        let silent = now.since(beat.at);
        let was_missed = std::mem::take(&mut beat.missed);
        phase.clone_into(&mut beat.phase);
        note.trim().clone_into(&mut beat.note);
        beat.at = now;
        (step, was_missed.then_some(silent))
    }

    /// Returns the steps of the workers.
    /// A worker in the phase `done` has none.
    pub fn steps(&self) -> impl Iterator<Item = (LocalRank, &StepMarks)> {
        let stepping = self.workers.iter().filter(|(_, beat)| beat.phase != DONE);
        stepping.map(|(local_rank, beat)| (*local_rank, &beat.steps))
    }

    /// Returns the time at which the next limit expires.
    pub fn deadline(&self) -> Option<Mono> {
        self.workers
            .values()
            .filter(|beat| !beat.missed)
            .filter_map(|beat| Some(beat.at + self.limits.of(&beat.phase)?))
            .min()
    }

    /// Returns the workers whose limit has expired, each once per silence.
    pub fn missed(&mut self, now: Mono) -> Vec<Missed> {
        let mut missed = Vec::new();
        for (local_rank, beat) in &mut self.workers {
            let Some(limit) = self.limits.of(&beat.phase) else {
                continue;
            };
            let silent = now.since(beat.at);
            if beat.missed || silent < limit {
                continue;
            }
            beat.missed = true;
            missed.push(Missed {
                local_rank: *local_rank,
                phase: beat.phase.clone(),
                note: beat.note.clone(),
                silent,
                limit,
            });
        }
        missed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: LocalRank = LocalRank(0);
    const ONE: LocalRank = LocalRank(1);

    fn at(seconds: u64) -> Mono {
        Mono::ZERO + Duration::from_secs(seconds)
    }

    fn beats(limits: &str) -> Heartbeats {
        let mut beats = Heartbeats::new(HeartbeatLimits::parse(limits).unwrap());
        beats.started(at(0), ZERO);
        beats.started(at(0), ONE);
        beats
    }

    #[test]
    fn limits_are_read_for_all_and_by_phase() {
        let seconds = |limits: &HeartbeatLimits, phase| limits.of(phase).map(|it| it.as_secs_f64());
        let limits = HeartbeatLimits::parse("30").unwrap();
        assert_eq!(seconds(&limits, "step"), Some(30.0));
        assert_eq!(seconds(&limits, INIT), None);
        assert_eq!(seconds(&limits, DONE), None);
        let limits = HeartbeatLimits::parse("init=600, step=0.5,checkpoint=0").unwrap();
        assert_eq!(seconds(&limits, INIT), Some(600.0));
        assert_eq!(seconds(&limits, "step"), Some(0.5));
        assert_eq!(seconds(&limits, "checkpoint"), None);
        assert_eq!(seconds(&limits, "anything"), None);
        let limits = HeartbeatLimits::parse("init=9,20").unwrap();
        assert_eq!(seconds(&limits, INIT), Some(9.0));
        assert_eq!(seconds(&limits, "anything"), Some(20.0));
        for bad in [
            "", "x", "-1", "inf", "NaN", "=3", "a b=3", "a=1,a=2", "1,2", "a=", "1,",
        ] {
            assert!(HeartbeatLimits::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_worker_that_never_sent_a_beat_is_not_missed_unless_init_has_a_limit() {
        let mut quiet = beats("10");
        assert_eq!(quiet.deadline(), None);
        assert_eq!(quiet.missed(at(1000)), []);
        let mut strict = beats("init=10");
        assert_eq!(strict.deadline(), Some(at(10)));
        assert_eq!(strict.missed(at(10)).len(), 2);
    }

    #[test]
    fn each_phase_has_its_limit_and_a_miss_is_reported_once() {
        let mut beats = beats("step=10,checkpoint=100");
        beats.beat(at(5), 0.0, ZERO, b"step 17");
        beats.beat(at(5), 0.0, ONE, b"checkpoint");
        assert_eq!(beats.deadline(), Some(at(15)));
        assert_eq!(beats.missed(at(14)), []);
        let missed = Missed {
            local_rank: ZERO,
            phase: "step".to_owned(),
            note: "17".to_owned(),
            silent: Duration::from_secs(11),
            limit: Duration::from_secs(10),
        };
        assert_eq!(beats.missed(at(16)), [missed]);
        assert_eq!(beats.missed(at(20)), []);
        assert_eq!(beats.deadline(), Some(at(105)));
        let (_, resumed) = beats.beat(at(25), 0.0, ZERO, b"step");
        assert_eq!(resumed, Some(Duration::from_secs(20)));
        assert_eq!(beats.beat(at(26), 0.0, ZERO, b"step").1, None);
        assert_eq!(beats.missed(at(36)).len(), 1);
        beats.beat(at(37), 0.0, ZERO, b"done");
        beats.ended(ONE);
        assert_eq!(beats.deadline(), None);
    }

    #[test]
    fn steps_are_counted_and_have_the_time_that_the_worker_wrote() {
        let mut beats = beats("0");
        beats.beat(at(10), 100.0, ZERO, b"step");
        beats.beat(at(11), 101.0, ZERO, b"step");
        beats.beat(at(12), 102.0, ONE, b"step 7 101.5");
        // A time of another clock does not count.
        beats.beat(at(13), 103.0, ONE, b"step 8 999");
        beats.beat(at(14), 104.0, ONE, b"checkpoint 9");
        let steps: Vec<_> = beats
            .steps()
            .map(|(_, steps)| steps.relative_to(at(12)))
            .collect();
        assert_eq!(steps[0], [(1, -2.0), (2, -1.0)]);
        assert_eq!(steps[1], [(7, -0.5), (8, 1.0)]);
        beats.beat(at(15), 105.0, ZERO, b"done");
        assert_eq!(beats.steps().count(), 1);
        assert_eq!(beats.missed(at(1000)), []);
    }

    #[test]
    fn a_beat_names_its_step() {
        let mut beats = beats("0");
        for (line, expected) in [
            (&b"step 12"[..], Some((12, true, 0))),
            (b" step  13 loss=3", Some((13, true, 0))),
            (b"step 14 873.25", Some((14, true, 750))),
            (b"step", Some((15, false, 0))),
            (b"step x", Some((16, false, 0))),
            (b"step 2 999", Some((2, true, 0))),
            (b"stepping 12", None),
            (b"checkpoint 12", None),
            (b"\xff", None),
        ] {
            let (step, _) = beats.beat(at(1000), 874.0, ZERO, line);
            let found = step.map(|it| (it.number, it.is_numbered, it.age.as_millis()));
            assert_eq!(found, expected, "{line:?}");
        }
        assert_eq!(beats.beat(at(1), 0.0, LocalRank(7), b"step 1").0, None);
    }

    #[test]
    fn any_bytes_are_a_beat() {
        let mut beats = beats("10");
        for line in [&b""[..], b"   ", b"\xff\x00\x1b[31m", &[b'x'; 4096]] {
            beats.beat(at(1), 0.0, ZERO, line);
            assert_eq!(beats.deadline(), Some(at(11)), "{line:?}");
        }
        let missed = &beats.missed(at(11))[0];
        assert!(missed.phase.len() <= MOST_KEPT);
        assert!(!missed.phase.contains(char::is_control));
    }
}
