//! Stragglers: ranks that are slower than the other ranks of the job.
//!
//! In synchronous training all ranks have the same step rate, because each rank waits for the
//! slowest one in the collectives. The slow rank is the one that *arrives* last. If the script
//! reports a step before the step's first collective, the times at which the ranks report the same
//! step differ by that lateness. A rank without collectives falls behind in steps instead.
//!
//! ```text
//!   rank 0  step 7 |all_reduce         |step 8 |all_reduce        |
//!   rank 1  step 7          |all_reduce|step 8         |all_reduce|   arrives last in each step
//! ```
//!
//! Without steps, the watch only guesses: the rank that computes most of the time for the whole
//! window may be slow if every other rank computes at most half as much, because waiting ranks
//! sleep. Ranks that spin while they wait, and a rank that is slow because it sleeps, look like all
//! others.
//!
//! The watch reports a rank only if the evidence persists for the whole window. Lateness is the
//! median over the last steps. Therefore an evaluation, a checkpoint or a compilation on one rank
//! is no straggler.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use rdzv_core::quantity;
use rdzv_core::rank::Rank;
use rdzv_core::time::Mono;
use serde::{Deserialize, Serialize};

/// Smallest lateness that counts: as a share of a step, and in seconds.
const LATE_SHARE: f64 = 0.2;
const LATE_LEAST: f64 = 0.05;

/// Smallest lag behind the other ranks that counts: in steps, and in seconds.
const BEHIND_STEPS: u64 = 2;
const BEHIND_LEAST: f64 = 1.0;

/// Smallest number of judgements that find a rank slow before its report.
const JUDGEMENTS: u32 = 3;

/// Smallest processor use for a guess: share of the time, ratio to other ranks.
const GUESS_LEAST: f64 = 0.5;
const GUESS_RATIO: f64 = 2.0;

/// Maximum number of marks of a worker, and of steps in one judgement.
const MOST_MARKS: usize = 32;
const COMPARED: usize = 16;

/// Smallest time that a full list of marks covers.
const SPAN: Duration = Duration::from_secs(10);

/// Times of some steps of one worker.
///
/// The steps are multiples of a power of two, so that different workers keep the same steps.
#[derive(Debug)]
pub struct StepMarks {
    last: Option<u64>,
    stride: u64,
    marks: VecDeque<(u64, Mono)>,
}

impl Default for StepMarks {
    fn default() -> Self {
        Self {
            last: None,
            stride: 1,
            marks: VecDeque::new(),
        }
    }
}

impl StepMarks {
    /// Adds a step, and returns its number; `None` is the step after the last one.
    pub fn add(&mut self, number: Option<u64>, at: Mono) -> u64 {
        let next = self.last.map_or(1, |last| last.saturating_add(1));
        let number = number.unwrap_or(next);
        if self.last.is_some_and(|last| number < last) {
            // A script may count from 0 in each epoch.
            *self = Self::default();
        }
        if self.last.replace(number) == Some(number) {
            return number;
        }
        let newest = self.marks.back().map(|(_, newest)| at.since(*newest));
        if newest.is_some_and(|since| since > SPAN) {
            self.stride = 1;
        }
        if !number.is_multiple_of(self.stride) {
            return number;
        }
        self.marks.push_back((number, at));
        if self.marks.len() > MOST_MARKS {
            if at.since(self.marks[0].1) < SPAN {
                self.stride *= 2;
                let stride = self.stride;
                self.marks.retain(|(step, _)| step.is_multiple_of(stride));
            } else {
                self.marks.pop_front();
            }
        }
        number
    }

    /// Returns the last step.
    pub fn last(&self) -> Option<u64> {
        self.last
    }

    /// Returns steps with their times in seconds relative to `instant`.
    pub fn relative_to(&self, instant: Mono) -> Vec<(u64, f64)> {
        let marks = self.marks.iter();
        marks
            .map(|(step, at)| {
                let seconds = at.since(instant).as_secs_f64() - instant.since(*at).as_secs_f64();
                (*step, seconds)
            })
            .collect()
    }
}

/// State of one rank at an instant that all nodes share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct RankSample {
    /// Rank in the job.
    pub rank: Rank,
    /// Node of the rank.
    pub node: String,
    /// Last step; `None` if the script reports no steps.
    pub step: Option<u64>,
    /// Steps with their times in seconds, relative to the instant.
    pub marks: Vec<(u64, f64)>,
    /// Share of the time in which the rank ran, or was ready to run.
    /// It can exceed 1 if several threads run.
    pub processor: Option<f64>,
}

/// Evidence for a slow rank.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Lateness {
    /// The rank reaches each step later than the other ranks.
    PerStep {
        /// Seconds after the other ranks.
        late: f64,
        /// Duration of a step in seconds.
        step: f64,
    },
    /// The rank is this number of steps behind the other ranks.
    Behind(u64),
    /// The rank computes while the other ranks wait, which is only a guess.
    Guess {
        /// Share of the time in which the rank ran, or was ready to run.
        processor: f64,
        /// Maximum of the other ranks.
        others: f64,
    },
}

impl fmt::Display for Lateness {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerStep { late, step } => write!(
                formatter,
                "it reaches each step {late:.2} s after them (a step takes {step:.2} s)"
            ),
            Self::Behind(steps) => write!(
                formatter,
                "it is {} behind them",
                quantity::count(steps, "step")
            ),
            Self::Guess { processor, others } => write!(
                formatter,
                "it computes {:.0} % of the time, and every other rank at most {:.0} % (a guess, \
                 because the script reports no steps)",
                processor * 100.0,
                others * 100.0
            ),
        }
    }
}

/// Change in the set of slow ranks.
#[derive(Debug, Clone, PartialEq)]
pub enum StragglerChange {
    /// A rank is slow.
    Slow {
        /// The rank.
        rank: Rank,
        /// Node of the rank.
        node: String,
        /// Time for which the rank has been slow.
        slow_for: Duration,
        /// Evidence of the last judgement.
        by: Lateness,
    },
    /// A reported rank is no longer slow.
    Over {
        /// The rank.
        rank: Rank,
        /// Node of the rank.
        node: String,
    },
}

impl fmt::Display for StragglerChange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow {
                rank,
                node,
                slow_for,
                by,
            } => {
                let how = match by {
                    Lateness::Guess { .. } => "may have been",
                    _ => "has been",
                };
                let seconds = slow_for.as_secs_f64();
                write!(
                    formatter,
                    "rank {rank} ({node}) {how} slower than the other ranks for {seconds:.0} s: {by}"
                )
            }
            Self::Over { rank, node } => {
                write!(
                    formatter,
                    "rank {rank} ({node}) is no longer slower than the other ranks"
                )
            }
        }
    }
}

#[derive(Debug)]
struct Slow {
    since: Mono,
    judgements: u32,
    is_reported: bool,
    /// Start of the time in which the rank has not been slow.
    fine_since: Option<Mono>,
}

/// Watch of all ranks of a job.
#[derive(Debug)]
pub struct StragglerWatch {
    window: Duration,
    slow: BTreeMap<Rank, Slow>,
    /// Newest step of the last judgement.
    judged: Option<u64>,
}

impl StragglerWatch {
    /// Creates a watch that reports a rank that is slow for `window`.
    pub fn new(window: Duration) -> Self {
        Self {
            window,
            slow: BTreeMap::new(),
            judged: None,
        }
    }

    /// Returns the time between two judgements.
    pub fn period(&self) -> Duration {
        (self.window / 6).clamp(Duration::from_millis(500), Duration::from_secs(5))
    }

    /// Forgets all ranks, because the attempt is over.
    pub fn clear(&mut self) {
        (self.slow, self.judged) = (BTreeMap::new(), None);
    }

    /// Judges all ranks of the job, and returns the changes.
    pub fn judge(&mut self, now: Mono, samples: &[RankSample]) -> Vec<StragglerChange> {
        let found = if samples.iter().any(|sample| sample.step.is_some()) {
            let compared = Compared::new(samples);
            let newest = compared.steps.keys().next_back().copied();
            let last = samples.iter().filter_map(|sample| sample.step).max();
            let progress = last.max(newest);
            if progress == self.judged {
                // Without new steps, such as during an evaluation, nothing is known.
                return Vec::new();
            }
            self.judged = progress;
            compared.slow(samples)
        } else {
            Vec::from_iter(guess(samples))
        };
        let mut changes = Vec::new();
        for sample in samples {
            let evidence = found.iter().find(|(rank, _)| *rank == sample.rank);
            changes.extend(self.update(now, sample, evidence.map(|(_, by)| *by)));
        }
        changes
    }

    fn update(
        &mut self,
        now: Mono,
        sample: &RankSample,
        evidence: Option<Lateness>,
    ) -> Option<StragglerChange> {
        let (rank, node) = (sample.rank, sample.node.clone());
        let Some(by) = evidence else {
            let slow = self.slow.get_mut(&rank)?;
            let fine_since = *slow.fine_since.get_or_insert(now);
            let is_reported = slow.is_reported;
            if is_reported && now.since(fine_since) < self.window / 2 {
                return None;
            }
            self.slow.remove(&rank);
            return is_reported.then_some(StragglerChange::Over { rank, node });
        };
        let slow = self.slow.entry(rank).or_insert(Slow {
            since: now,
            judgements: 0,
            is_reported: false,
            fine_since: None,
        });
        (slow.fine_since, slow.judgements) = (None, slow.judgements + 1);
        let slow_for = now.since(slow.since);
        if slow.is_reported || slow_for < self.window || slow.judgements < JUDGEMENTS {
            return None;
        }
        slow.is_reported = true;
        Some(StragglerChange::Slow {
            rank,
            node,
            slow_for,
            by,
        })
    }
}

/// Steps of at least half of the ranks, with the time of a typical rank.
struct Compared {
    steps: BTreeMap<u64, f64>,
    /// Duration of a step, if it is known.
    step: Option<f64>,
}

impl Compared {
    fn new(samples: &[RankSample]) -> Self {
        let mut times: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (step, at) in samples.iter().flat_map(|sample| &sample.marks) {
            times.entry(*step).or_default().push(*at);
        }
        let ranks = samples.iter().filter(|it| it.step.is_some()).count();
        let usual = times.into_iter().rev().filter_map(|(step, times)| {
            let is_usual = times.len() * 2 >= ranks;
            Some((step, median(times).filter(|_| is_usual)?))
        });
        let steps: BTreeMap<u64, f64> = usual.take(COMPARED).collect();
        let ends = steps.first_key_value().zip(steps.last_key_value());
        let step = ends.and_then(|((first, begin), (last, end))| {
            (first < last).then(|| (end - begin) / count(last - first))
        });
        Self { steps, step }
    }

    fn slow(&self, samples: &[RankSample]) -> Vec<(Rank, Lateness)> {
        let Some(step) = self.step else {
            return Vec::new();
        };
        let lasts = samples.iter().filter_map(|sample| sample.step);
        let mut lasts: Vec<u64> = lasts.collect();
        lasts.sort_unstable();
        let typical = lasts.get(lasts.len() / 2).copied().unwrap_or(0);
        let slow = samples.iter().filter_map(|sample| {
            let behind = typical.saturating_sub(sample.step?);
            if behind >= BEHIND_STEPS && count(behind) * step >= BEHIND_LEAST {
                return Some((sample.rank, Lateness::Behind(behind)));
            }
            let usual = |(number, at): &(u64, f64)| Some(at - self.steps.get(number)?);
            let late = median(sample.marks.iter().filter_map(usual).collect())?;
            let is_late = late >= LATE_LEAST.max(step * LATE_SHARE);
            is_late.then_some((sample.rank, Lateness::PerStep { late, step }))
        });
        slow.collect()
    }
}

fn guess(samples: &[RankSample]) -> Option<(Rank, Lateness)> {
    let used = samples
        .iter()
        .map(|sample| Some((sample.processor?, sample.rank)));
    let mut used: Vec<(f64, Rank)> = used.collect::<Option<_>>()?;
    used.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let [(processor, rank), (others, _), ..] = used[..] else {
        return None;
    };
    let is_alone = processor >= GUESS_LEAST && processor >= others * GUESS_RATIO;
    is_alone.then_some((rank, Lateness::Guess { processor, others }))
}

/// Returns the lower median.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

fn count(steps: u64) -> f64 {
    u32::try_from(steps).map_or(f64::from(u32::MAX), f64::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(30);

    /// A job with one step per second, judged every 5 s for 2 minutes.
    ///
    /// `late` returns the seconds by which a rank reports a step late, `rate` its steps per second.
    fn changes(
        ranks: u32,
        rate: impl Fn(u32) -> f64,
        late: impl Fn(u32, u64) -> f64,
    ) -> Vec<StragglerChange> {
        let mut watch = StragglerWatch::new(WINDOW);
        let mut marks: Vec<StepMarks> = (0..ranks).map(|_| StepMarks::default()).collect();
        let mut changes = Vec::new();
        let at = |seconds: f64| Mono::ZERO + Duration::from_secs_f64(seconds);
        for judgement in 1..=24_u32 {
            let now = f64::from(judgement) * 5.0;
            let samples: Vec<RankSample> = (0..ranks)
                .zip(&mut marks)
                .map(|(rank, marks)| {
                    let mut step = marks.last().unwrap_or(0) + 1;
                    while count(step) / rate(rank) + late(rank, step) <= now {
                        marks.add(Some(step), at(count(step) / rate(rank) + late(rank, step)));
                        step += 1;
                    }
                    RankSample {
                        rank: Rank(rank),
                        step: marks.last(),
                        marks: marks.relative_to(at(now)),
                        ..RankSample::default()
                    }
                })
                .collect();
            changes.extend(watch.judge(at(now), &samples));
        }
        changes
    }

    fn slow_ranks(changes: &[StragglerChange]) -> Vec<u32> {
        let slow = changes.iter().filter_map(|change| match change {
            StragglerChange::Slow { rank, .. } => Some(rank.0),
            StragglerChange::Over { .. } => None,
        });
        slow.collect()
    }

    #[test]
    fn the_rank_that_arrives_last_in_each_step_is_named_once_and_healthy_ones_never() {
        type Late = fn(u32, u64) -> f64;
        let cases: [(&str, u32, Late, &[u32]); 12] = [
            ("equal ranks", 4, |_, _| 0.0, &[]),
            (
                "late in each step",
                4,
                |rank, _| if rank == 2 { 0.3 } else { 0.0 },
                &[2],
            ),
            (
                "one of two ranks",
                2,
                |rank, _| if rank == 1 { 0.3 } else { 0.0 },
                &[1],
            ),
            (
                "two of five",
                5,
                |rank, _| if rank > 2 { 0.4 } else { 0.0 },
                &[3, 4],
            ),
            (
                "less than a fifth of a step",
                4,
                |rank, _| f64::from(rank) * 0.05,
                &[],
            ),
            (
                "a checkpoint every 5 steps",
                4,
                |rank, step| if rank == 0 && step % 5 == 0 { 0.9 } else { 0.0 },
                &[],
            ),
            (
                "slow first steps",
                4,
                |rank, step| if rank == 1 && step < 8 { 0.9 } else { 0.0 },
                &[],
            ),
            (
                "evaluation on all ranks",
                4,
                |_, step| if step > 40 { 40.0 } else { 0.0 },
                &[],
            ),
            (
                "evaluation on one rank",
                4,
                |rank, step| match step {
                    40 if rank == 0 => 40.0,
                    41.. => 40.0,
                    _ => 0.0,
                },
                &[],
            ),
            (
                "late steps of changing ranks",
                4,
                |rank, step| {
                    if u64::from(rank) == step % 4 {
                        0.5
                    } else {
                        0.0
                    }
                },
                &[],
            ),
            (
                "jitter",
                4,
                |rank, step| count((step * 7 + u64::from(rank) * 3) % 10) * 0.03,
                &[],
            ),
            ("one rank", 1, |_, _| 0.0, &[]),
        ];
        for (name, ranks, late, expected) in cases {
            let found = changes(ranks, |_| 1.0, late);
            assert_eq!(slow_ranks(&found), expected, "{name}: {found:?}");
            assert_eq!(found.len(), expected.len(), "{name}: {found:?}");
        }
    }

    #[test]
    fn the_report_states_since_when_and_by_how_much() {
        let late = |rank, _| if rank == 1 { 0.25 } else { 0.0 };
        let found = changes(3, |_| 1.0, late);
        assert_eq!(
            found[0].to_string(),
            "rank 1 () has been slower than the other ranks for 30 s: it reaches each step 0.25 s \
             after them (a step takes 1.00 s)"
        );
    }

    #[test]
    fn a_rank_that_waits_for_no_other_one_falls_behind_in_steps() {
        let found = changes(3, |rank| if rank == 1 { 0.5 } else { 1.0 }, |_, _| 0.0);
        assert_eq!(slow_ranks(&found), [1]);
        let StragglerChange::Slow { by, .. } = found[0] else {
            panic!("{found:?}");
        };
        assert!(matches!(by, Lateness::Behind(10..)), "{by:?}");
        let fast = changes(2, |rank| if rank == 1 { 50.0 } else { 100.0 }, |_, _| 0.0);
        assert_eq!(slow_ranks(&fast), [1], "{fast:?}");
    }

    #[test]
    fn a_rank_that_recovers_is_reported_once_more() {
        let late = |rank, step| if rank == 1 && step < 60 { 0.5 } else { 0.0 };
        let found = changes(3, |_| 1.0, late);
        assert_eq!(slow_ranks(&found), [1]);
        assert!(matches!(
            found[1],
            StragglerChange::Over { rank: Rank(1), .. }
        ));
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn without_steps_only_a_rank_that_computes_while_all_others_wait_is_a_guess() {
        let guessed = |shares: &[f64]| {
            let mut watch = StragglerWatch::new(WINDOW);
            let samples: Vec<RankSample> = (0..)
                .zip(shares)
                .map(|(rank, share)| RankSample {
                    rank: Rank(rank),
                    processor: Some(*share),
                    ..RankSample::default()
                })
                .collect();
            let changes = (0..20).flat_map(|judgement| {
                watch.judge(Mono::ZERO + Duration::from_secs(judgement * 5), &samples)
            });
            changes.collect::<Vec<_>>()
        };
        let found = guessed(&[0.2, 0.97, 0.3]);
        assert_eq!(slow_ranks(&found), [1]);
        let text = found[0].to_string();
        assert!(
            text.contains("may have been slower") && text.contains("a guess"),
            "{text}"
        );
        for healthy in [
            &[0.9, 0.95, 0.8][..],
            &[0.0, 0.01, 0.3],
            &[1.0],
            &[1.0, 1.0],
            &[0.6, 0.4],
        ] {
            assert_eq!(guessed(healthy), [], "{healthy:?}");
        }
    }

    #[test]
    fn marks_of_fast_and_slow_workers_are_few_and_of_the_same_steps() {
        let mut marks = [StepMarks::default(), StepMarks::default()];
        for step in 0..20_000_u64 {
            for (late, marks) in (0..).zip(&mut marks) {
                let at = Duration::from_millis(step * 10 + late * 3);
                marks.add(Some(step), Mono::ZERO + at);
            }
        }
        let [one, other] = marks.map(|marks| marks.relative_to(Mono::ZERO));
        assert!(one.len() <= MOST_MARKS && one.len() > MOST_MARKS / 3);
        assert!(
            one.iter()
                .zip(&other)
                .all(|((this, _), (that, _))| this == that)
        );
        let mut epochs = StepMarks::default();
        for step in [1, 2, 3, 1, 1, 2] {
            epochs.add(Some(step), Mono::ZERO);
        }
        assert_eq!(epochs.relative_to(Mono::ZERO), [(1, 0.0), (2, 0.0)]);
    }
}
