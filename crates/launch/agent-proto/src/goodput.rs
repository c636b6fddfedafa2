//! Classes of a node's time, and repeated steps.
//!
//! ```text
//!   starting ─► rendezvous ─► starting ─► running ─► stopping ─► rendezvous …
//!                                         stalled   (a reported hang, until its end)
//!                                         repeated  (steps that an earlier attempt completed)
//!   suspended: in every phase
//!   stopping:  also from the death of an agent until the rendezvous of the next agent
//! ```
//!
//! Each second of a node's wall time is in exactly one class, so the classes sum to the wall time.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Limit on the delay of a step, in seconds.
///
/// A longer delay means that the clock was set back.
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
    /// The workers stop, or the node waits for the other nodes at the end.
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
/// Times are in seconds since the Unix epoch, durations in seconds. Each method with `&mut self`
/// records one transition.
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
    /// `true` if the workers are suspended, in any phase.
    #[serde(skip)]
    is_suspended: bool,
    /// `true` once a worker of this node has reported a step.
    #[serde(skip)]
    has_steps: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
enum Phase {
    #[default]
    Starting,
    Rendezvous,
    Running(Work),
    /// As `Running`, but the workers hang.
    Stalled(Work),
    Stopping,
    Ended,
}

/// Work of running workers.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Work {
    /// No worker has reported a step in this attempt.
    Start,
    New,
    Repeated,
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
        self.turn(at, |it| it.phase = Phase::Starting);
    }

    /// The node begins the rendezvous.
    pub fn rendezvous(&mut self, at: f64) {
        self.turn(at, |it| {
            (it.phase, it.is_suspended) = (Phase::Rendezvous, false);
        });
    }

    /// All workers have started.
    pub fn running(&mut self, at: f64) {
        self.turn(at, |it| {
            // A worker may report a step before the last worker has started.
            if !matches!(it.phase, Phase::Running(_) | Phase::Stalled(_)) {
                it.phase = Phase::Running(Work::Start);
            }
        });
    }

    /// A worker begins a step that an earlier attempt has completed, or a new one.
    pub fn step(&mut self, at: f64, is_repeated: bool) {
        self.turn(at, |it| {
            // Until the first step of all, the agent does not know that steps will be reported.
            if !std::mem::replace(&mut it.has_steps, true)
                && let Some(ran) = it.seconds.remove(&TimeClass::Running)
            {
                *it.seconds.entry(TimeClass::Starting).or_default() += ran;
            }
            let work = if is_repeated {
                Work::Repeated
            } else {
                Work::New
            };
            match &mut it.phase {
                Phase::Running(before) | Phase::Stalled(before) => *before = work,
                Phase::Starting => it.phase = Phase::Running(work),
                Phase::Rendezvous | Phase::Stopping | Phase::Ended => {}
            }
        });
    }

    /// The agent reports that workers hang.
    pub fn hang(&mut self, at: f64) {
        self.turn(at, |it| {
            if let Phase::Running(work) = it.phase {
                it.phase = Phase::Stalled(work);
            }
        });
    }

    /// The workers make progress again.
    pub fn hang_over(&mut self, at: f64) {
        self.turn(at, |it| {
            if let Phase::Stalled(work) = it.phase {
                it.phase = Phase::Running(work);
            }
        });
    }

    /// The workers are suspended.
    pub fn suspended(&mut self, at: f64) {
        self.turn(at, |it| it.is_suspended = true);
    }

    /// The workers continue, or are killed.
    pub fn resumed(&mut self, at: f64) {
        self.turn(at, |it| it.is_suspended = false);
    }

    /// The workers stop or have succeeded, or the agent was killed.
    pub fn stopping(&mut self, at: f64) {
        self.turn(at, |it| it.phase = Phase::Stopping);
    }

    /// The run ends.
    pub fn ended(&mut self, at: f64) {
        self.turn(at, |it| it.phase = Phase::Ended);
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
            Phase::Rendezvous => TimeClass::Rendezvous,
            Phase::Stopping => TimeClass::Stopping,
            Phase::Stalled(_) => TimeClass::Stalled,
            Phase::Running(Work::Repeated) => TimeClass::Repeated,
            Phase::Running(Work::Start) if self.has_steps => TimeClass::Starting,
            Phase::Running(Work::Start | Work::New) => TimeClass::Running,
            Phase::Starting => TimeClass::Starting,
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
    /// `None` if there are fewer than three numbers.
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
    /// `most` is the highest step that an earlier agent has seen.
    pub fn new(most: Option<u64>) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }

    /// Returns the highest step that a worker has begun.
    pub fn most(&self) -> Option<u64> {
        self.most
    }

    /// Begins the next attempt.
    pub fn begin_attempt(&mut self) {
        (self.has_begun, self.new_from) = (false, None);
    }

    /// Records that a worker begins a step.
    ///
    /// `None` is a step without a number, which is new.
    /// Returns a change with the first step of an attempt, and with the first new one.
    pub fn step(&mut self, step: Option<u64>) -> Option<StepChange> {
        let next = || self.most.map_or(1, |most| most.saturating_add(1));
        let step = step.unwrap_or_else(next);
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
        // The agent was killed here.
        next.stopping(1005.0);
        assert_eq!(next.seconds[&Running], 2.0);
        next.rendezvous(1006.0);
        assert_eq!(next.seconds[&Stopping], 1.0);
        next.running(1007.0);
        assert_eq!(next.class, Some(Starting), "its workers report steps");
    }

    #[test]
    fn steps_of_an_earlier_attempt_are_repeated() {
        let mut steps = Steps::default();
        let change = |step, new_from| Some(StepChange { step, new_from });
        assert_eq!(steps.step(Some(0)), change(0, None));
        assert_eq!(
            (
                steps.step(Some(1)),
                steps.step(Some(1)),
                steps.step(Some(7))
            ),
            (None, None, None)
        );
        steps.begin_attempt();
        assert_eq!(steps.step(Some(5)), change(5, Some(7)));
        assert_eq!(steps.step(Some(6)), None);
        // The earlier attempt has begun step 7, but has not completed it.
        assert_eq!(steps.step(Some(7)), change(7, None));
        assert_eq!((steps.step(Some(6)), steps.step(Some(8))), (None, None));
        steps.begin_attempt();
        assert_eq!(steps.step(Some(9)), change(9, None));
        steps.begin_attempt();
        assert_eq!(steps.step(None), change(10, None), "it is new");
        assert_eq!(steps.step(None), None);
        let mut next = Steps::new(Some(9));
        assert_eq!(next.step(Some(2)), change(2, Some(9)));
        next.begin_attempt();
        assert_eq!(next.step(Some(2)), change(2, Some(9)));
    }
}
