//! Classes of a node's time, and repeated steps.
//!
//! ```text
//!   starting ─► rendezvous ─► starting ─► running ─► stopping ─► rendezvous …
//!                                         stalled   (a reported hang, until its end)
//!                                         repeated  (steps that an earlier attempt began)
//!   suspended: in every phase
//! ```
//!
//! Each second of a node's wall time is in exactly one class, so the classes sum to the wall time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Limit on the delay of a step, in seconds.
///
/// An earlier time means that the clock was set back.
const LATE: f64 = 10.0;

/// Class of a second of a node's wall time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeClass {
    /// The agent or its workers start, up to the first step if the steps are known.
    Starting,
    /// The node waits for the other nodes of the next round.
    Rendezvous,
    /// The workers run.
    Running,
    /// The workers hang, as the agent has reported.
    Stalled,
    /// The workers are suspended, by a fence or by the user.
    Suspended,
    /// The workers run steps that an earlier attempt has completed.
    Repeated,
    /// The workers stop, or wait for the other nodes at the end.
    Stopping,
}

impl TimeClass {
    /// All classes, in the order of a table.
    pub const ALL: [Self; 7] = [
        Self::Running,
        Self::Starting,
        Self::Rendezvous,
        Self::Stalled,
        Self::Suspended,
        Self::Repeated,
        Self::Stopping,
    ];

    /// Returns the name of the class, such as `running`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Rendezvous => "rendezvous",
            Self::Running => "running",
            Self::Stalled => "stalled",
            Self::Suspended => "suspended",
            Self::Repeated => "repeated",
            Self::Stopping => "stopping",
        }
    }
}

/// Time of a node by class.
///
/// Times are in seconds since the Unix epoch, durations in seconds. Each method records one
/// transition.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goodput {
    /// Class since `since`; `None` before the first event and after the last one.
    pub class: Option<TimeClass>,
    /// Time up to which `seconds` counts.
    pub since: f64,
    /// Duration of each class until `since`.
    pub seconds: BTreeMap<TimeClass, f64>,
    #[serde(skip)]
    phase: Phase,
    #[serde(skip)]
    is_stalled: bool,
    #[serde(skip)]
    is_suspended: bool,
    #[serde(skip)]
    is_repeated: bool,
    /// `true` if workers of this node have reported steps.
    #[serde(skip)]
    has_steps: bool,
    /// Duration of `Running` before the workers of the attempt.
    #[serde(skip)]
    ran_before: f64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Starting,
    Rendezvous,
    /// All workers have started; no worker has reported a step.
    Started,
    Stepping,
    Stopping,
    Ended,
}

impl Goodput {
    /// Returns the duration of each class at a time.
    pub fn at(&self, now: f64) -> BTreeMap<TimeClass, f64> {
        let mut seconds = self.seconds.clone();
        if let Some(class) = self.class {
            *seconds.entry(class).or_default() += (now - self.since).max(0.0);
        }
        seconds
    }

    /// Returns the share of the time in which workers ran and repeated nothing.
    ///
    /// `None` if no time has passed.
    pub fn share(&self, now: f64) -> Option<f64> {
        let seconds = self.at(now);
        let all: f64 = seconds.values().sum();
        let good = seconds.get(&TimeClass::Running).copied().unwrap_or(0.0);
        (all > 0.0).then(|| good / all)
    }

    /// The agent or its workers start.
    pub fn starting(&mut self, at: f64) {
        self.turn(at, |it| {
            it.phase = Phase::Starting;
            it.ran_before = it.seconds.get(&TimeClass::Running).copied().unwrap_or(0.0);
        });
    }

    /// The node looks for the other nodes; all workers have exited.
    pub fn rendezvous(&mut self, at: f64) {
        self.turn(at, |it| {
            (it.phase, it.is_stalled) = (Phase::Rendezvous, false);
            (it.is_suspended, it.is_repeated) = (false, false);
        });
    }

    /// All workers have started.
    pub fn running(&mut self, at: f64) {
        self.turn(at, |it| {
            // A worker may report a step before the last worker has started.
            if it.phase != Phase::Stepping {
                it.phase = Phase::Started;
            }
        });
    }

    /// A worker begins a step that an earlier attempt has completed, or a new one.
    pub fn step(&mut self, at: f64, is_repeated: bool) {
        self.turn(at, |it| {
            // Until the first step of all, the agent does not know that steps will be reported.
            if !std::mem::replace(&mut it.has_steps, true) {
                let ran = it.seconds.insert(TimeClass::Running, it.ran_before);
                let moved = ran.unwrap_or(0.0) - it.ran_before;
                *it.seconds.entry(TimeClass::Starting).or_default() += moved;
            }
            if matches!(it.phase, Phase::Starting | Phase::Started) {
                it.phase = Phase::Stepping;
            }
            it.is_repeated = is_repeated;
        });
    }

    /// The agent reports that workers hang.
    pub fn hang(&mut self, at: f64) {
        self.turn(at, |it| it.is_stalled = true);
    }

    /// The workers make progress again.
    pub fn hang_over(&mut self, at: f64) {
        self.turn(at, |it| it.is_stalled = false);
    }

    /// The workers are suspended.
    pub fn suspended(&mut self, at: f64) {
        self.turn(at, |it| it.is_suspended = true);
    }

    /// The workers continue, or are killed.
    pub fn resumed(&mut self, at: f64) {
        self.turn(at, |it| it.is_suspended = false);
    }

    /// The workers stop.
    pub fn stopping(&mut self, at: f64) {
        self.turn(at, |it| it.phase = Phase::Stopping);
    }

    /// The run ends.
    pub fn ended(&mut self, at: f64) {
        self.turn(at, |it| {
            (it.phase, it.is_suspended) = (Phase::Ended, false);
        });
    }

    fn turn(&mut self, at: f64, change: impl FnOnce(&mut Self)) {
        // The time of a step may lie before the event that the agent has seen last.
        let is_late = at < self.since && self.since - at < LATE;
        let at = if is_late { self.since } else { at };
        self.seconds = self.at(at);
        self.since = at;
        change(self);
        self.class = self.current();
    }

    fn current(&self) -> Option<TimeClass> {
        Some(match self.phase {
            Phase::Ended => return None,
            _ if self.is_suspended => TimeClass::Suspended,
            Phase::Starting => TimeClass::Starting,
            Phase::Rendezvous => TimeClass::Rendezvous,
            Phase::Stopping => TimeClass::Stopping,
            _ if self.is_stalled => TimeClass::Stalled,
            Phase::Started if self.has_steps => TimeClass::Starting,
            _ if self.is_repeated => TimeClass::Repeated,
            Phase::Started | Phase::Stepping => TimeClass::Running,
        })
    }

    /// Returns the state as numbers, for the next agent of a node.
    pub fn note(&self) -> Vec<u64> {
        let micros = |seconds: f64| (seconds * 1e6).round() as u64;
        let class = self.class.map_or(0, |class| class as u64 + 1);
        let mut numbers = vec![class, micros(self.since), self.has_steps.into()];
        let seconds = |class| self.seconds.get(&class).copied().unwrap_or(0.0);
        numbers.extend(TimeClass::ALL.map(|class| micros(seconds(class))));
        numbers
    }

    /// Returns the state from the numbers of an earlier agent.
    ///
    /// `None` if there are none.
    pub fn of_note(numbers: &[u64]) -> Option<Self> {
        let (head, seconds) = numbers.split_first_chunk::<3>()?;
        let classes = TimeClass::ALL.into_iter();
        let seconds = classes.zip(seconds.iter().map(|micros| *micros as f64 / 1e6));
        Some(Self {
            class: TimeClass::ALL
                .into_iter()
                .find(|class| *class as u64 + 1 == head[0]),
            since: head[1] as f64 / 1e6,
            seconds: seconds.filter(|(_, seconds)| *seconds > 0.0).collect(),
            has_steps: head[2] != 0,
            ..Self::default()
        })
    }
}

/// Steps that the workers of a node report, over all attempts.
#[derive(Debug, Clone, Default)]
pub struct Steps {
    most: Option<u64>,
    has_begun: bool,
    /// First step that no earlier attempt has completed.
    ///
    /// `None` if no step is repeated now.
    new_from: Option<u64>,
}

/// Step with which an attempt begins, or begins new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepChange {
    /// Number of the step.
    pub step: u64,
    /// First step that no earlier attempt has completed.
    ///
    /// `None` if this step is new.
    pub new_from: Option<u64>,
}

impl Steps {
    /// Creates the steps of a node.
    ///
    /// `most` is the last step that an earlier agent has seen.
    pub fn new(most: Option<u64>) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Returns the last step that a worker has begun.
    pub fn most(&self) -> Option<u64> {
        self.most
    }

    /// Begins the next attempt.
    pub fn begin_attempt(&mut self) {
        (self.has_begun, self.new_from) = (false, None);
    }

    /// Records that a worker begins a step.
    ///
    /// Returns a change with the first step of an attempt, and with the first new one.
    pub fn step(&mut self, step: u64) -> Option<StepChange> {
        let known = self.most.filter(|most| step < *most);
        let new_from = self.new_from.filter(|until| step < *until);
        self.most = self.most.max(Some(step));
        if !std::mem::replace(&mut self.has_begun, true) {
            self.new_from = known;
        } else if self.new_from == new_from {
            return None;
        } else {
            self.new_from = None;
        }
        Some(StepChange {
            step,
            new_from: self.new_from,
        })
    }

    /// Returns the step and the time that a line of a heartbeat names.
    ///
    /// The form is `step 12`, or `step 12 873.25` with the node's monotonic clock in seconds.
    pub fn of_line(line: &[u8]) -> Option<(u64, Option<f64>)> {
        let mut words = std::str::from_utf8(line).ok()?.split_whitespace();
        words.next().filter(|phase| *phase == "step")?;
        let step = words.next()?.parse().ok()?;
        Some((step, words.next().and_then(|time| time.parse().ok())))
    }
}

#[cfg(test)]
mod tests {
    use super::TimeClass::*;
    use super::*;

    type Transition = fn(&mut Goodput, f64);

    /// Applies transitions, one each second, and asserts the class after each.
    fn play(table: &[(Transition, Option<TimeClass>)]) -> Goodput {
        let mut goodput = Goodput::default();
        for (index, (transition, class)) in table.iter().enumerate() {
            transition(&mut goodput, 1000.0 + index as f64);
            assert_eq!(goodput.class, *class, "row {index}");
            let sum: f64 = goodput.at(1000.25 + index as f64).values().sum();
            let rest = if class.is_some() { 0.25 } else { 0.0 };
            assert!(
                (sum - index as f64 - rest).abs() < 1e-6,
                "row {index}: {sum}"
            );
        }
        goodput
    }

    #[test]
    fn each_second_is_in_one_class() {
        let goodput = play(&[
            (Goodput::starting, Some(Starting)),
            (Goodput::rendezvous, Some(Rendezvous)),
            (Goodput::starting, Some(Starting)),
            (Goodput::running, Some(Running)),
            (Goodput::hang, Some(Stalled)),
            (Goodput::suspended, Some(Suspended)),
            (Goodput::resumed, Some(Stalled)),
            (Goodput::hang_over, Some(Running)),
            (Goodput::stopping, Some(Stopping)),
            (Goodput::hang_over, Some(Stopping)),
            (Goodput::rendezvous, Some(Rendezvous)),
            (Goodput::suspended, Some(Suspended)),
            (Goodput::rendezvous, Some(Rendezvous)),
            (Goodput::starting, Some(Starting)),
            (Goodput::running, Some(Running)),
            (Goodput::stopping, Some(Stopping)),
            (Goodput::ended, None),
        ]);
        assert_eq!(goodput.seconds[&Running], 3.0);
        assert_eq!(goodput.seconds[&Stalled], 2.0);
        assert_eq!(goodput.share(2000.0), Some(3.0 / 16.0));
    }

    #[test]
    fn the_time_before_the_first_step_is_a_start() {
        let goodput = play(&[
            (Goodput::starting, Some(Starting)),
            (Goodput::running, Some(Running)),
            (|it, at| it.step(at, false), Some(Running)),
            (Goodput::stopping, Some(Stopping)),
            (Goodput::running, Some(Starting)),
            (|it, at| it.step(at, true), Some(Repeated)),
            (|it, at| it.step(at, false), Some(Running)),
            (Goodput::ended, None),
        ]);
        assert_eq!(goodput.seconds[&Starting], 3.0);
        assert_eq!(goodput.seconds[&Running], 2.0);
        assert_eq!(goodput.seconds[&Repeated], 1.0);
    }

    #[test]
    fn a_clock_that_is_set_back_takes_no_time_away() {
        let mut goodput = Goodput::default();
        goodput.starting(1000.0);
        goodput.running(1004.0);
        goodput.stopping(400.0);
        // A step that the agent reads late takes none away either.
        goodput.step(399.0, false);
        goodput.ended(401.0);
        assert_eq!(goodput.seconds.values().sum::<f64>(), 5.0);
    }

    #[test]
    fn the_next_agent_continues_the_count() {
        let mut goodput = Goodput::default();
        assert_eq!(Goodput::of_note(&[]), None);
        goodput.starting(1000.0);
        goodput.running(1002.5);
        goodput.step(1003.0, false);
        let mut next = Goodput::of_note(&goodput.note()).unwrap();
        assert_eq!((next.class, next.seconds[&Starting]), (Some(Running), 3.0));
        next.starting(1005.0);
        assert_eq!(next.seconds[&Running], 2.0);
        next.running(1006.0);
        assert_eq!(next.class, Some(Starting), "its workers report steps");
    }

    #[test]
    fn steps_of_an_earlier_attempt_are_repeated() {
        let mut steps = Steps::default();
        let change = |step, new_from| Some(StepChange { step, new_from });
        assert_eq!(steps.step(0), change(0, None));
        assert_eq!(
            (steps.step(1), steps.step(1), steps.step(7)),
            (None, None, None)
        );
        steps.begin_attempt();
        assert_eq!(steps.step(5), change(5, Some(7)));
        assert_eq!(steps.step(6), None);
        // The earlier attempt has begun step 7, but has not completed it.
        assert_eq!(steps.step(7), change(7, None));
        assert_eq!((steps.step(6), steps.step(8)), (None, None));
        steps.begin_attempt();
        assert_eq!(steps.step(9), change(9, None));
        let mut next = Steps::new(steps.most());
        assert_eq!(next.step(2), change(2, Some(9)));
        next.begin_attempt();
        assert_eq!(next.step(2), change(2, Some(9)));
    }

    #[test]
    fn a_heartbeat_names_its_step() {
        for (line, step) in [
            (&b"step 12"[..], Some((12, None))),
            (b" step  12 loss=3", Some((12, None))),
            (b"step 12 873.25", Some((12, Some(873.25)))),
            (b"step", None),
            (b"step x", None),
            (b"checkpoint 12", None),
            (b"\xff", None),
        ] {
            assert_eq!(Steps::of_line(line), step);
        }
    }
}
