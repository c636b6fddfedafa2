//! The files that the workers of an experiment leave: when each began, and each of its steps.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::Context;

/// One process.
#[derive(Debug, Clone, Default)]
pub(super) struct Worker {
    /// Nanoseconds since the epoch, as all times.
    pub(super) began: u64,
    pub(super) round: u64,
    pub(super) rank: u32,
    pub(super) world_size: u32,
    pub(super) pid: u32,
    /// Restarts that its node had used.
    pub(super) restarts: u32,
    /// The number of its machine.
    pub(super) machine: usize,
    pub(super) steps: Vec<Step>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    pub(super) number: u64,
    /// When it ended.
    pub(super) time: u64,
    pub(super) loss: f64,
}

impl Worker {
    /// When it was last heard of.
    pub(super) fn last(&self) -> u64 {
        self.steps.last().map_or(self.began, |step| step.time)
    }

    fn add(&mut self, line: &str) -> Option<()> {
        let mut words = line.split(' ');
        match words.next()? {
            "began" => {
                self.began = words.next()?.parse().ok()?;
                self.round = words.next()?.parse().ok()?;
                self.rank = words.next()?.parse().ok()?;
                self.world_size = words.next()?.parse().ok()?;
                self.pid = words.next()?.parse().ok()?;
                self.restarts = words.next()?.parse().ok()?;
                self.machine = words.next()?.parse().ok()?;
            }
            "step" => self.steps.push(Step {
                number: words.next()?.parse().ok()?,
                time: words.next()?.parse().ok()?,
                loss: words.next()?.parse().ok()?,
            }),
            _ => return None,
        }
        Some(())
    }
}

/// All workers so far.
pub(super) struct Record {
    folder: PathBuf,
    /// By the names of their files, which begin with the time, with the length that was read.
    workers: BTreeMap<String, (u64, Worker)>,
}

impl Record {
    pub(super) fn new(folder: PathBuf) -> anyhow::Result<Self> {
        fs::create_dir_all(&folder)?;
        Ok(Self {
            folder,
            workers: BTreeMap::new(),
        })
    }

    /// Reads what is new.
    pub(super) fn read(&mut self) -> anyhow::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let (length, worker) = self.workers.entry(name).or_default();
            if entry.metadata()?.len() == *length {
                continue;
            }
            let mut file = File::open(entry.path())?;
            file.seek(SeekFrom::Start(*length))?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            // Each line is written in one piece.
            *length += text.len() as u64;
            for line in text.lines() {
                worker
                    .add(line)
                    .with_context(|| format!("a worker wrote '{line}'"))?;
            }
        }
        Ok(())
    }

    /// In the order in which they began.
    pub(super) fn workers(&self) -> impl Iterator<Item = &Worker> {
        let all = self.workers.values().map(|(_, worker)| worker);
        all.filter(|worker| worker.began > 0)
    }

    /// The newest round of which a worker has begun.
    pub(super) fn round(&self) -> Option<u64> {
        self.workers().map(|worker| worker.round).max()
    }

    /// The workers of a round.
    pub(super) fn of_round(&self, round: u64) -> Vec<&Worker> {
        self.workers()
            .filter(|worker| worker.round == round)
            .collect()
    }

    /// The machines whose workers have ended a step since a time, each with the round of the last one.
    pub(super) fn stepping(&self, since: u64) -> BTreeMap<usize, u64> {
        let mut stepping: BTreeMap<usize, u64> = BTreeMap::new();
        for worker in self.workers() {
            let last = worker.steps.last();
            if last.is_some_and(|step| step.time > since) {
                let round = stepping.entry(worker.machine).or_insert(worker.round);
                *round = worker.round.max(*round);
            }
        }
        stepping
    }

    /// Workers that have missed a step, or have done one twice.
    pub(super) fn skipping(&self) -> usize {
        let skips = |worker: &&Worker| {
            let mut pairs = worker.steps.windows(2);
            pairs.any(|pair| pair[1].number != pair[0].number + 1)
        };
        self.workers().filter(skips).count()
    }

    /// Whether the newest round is one of so many workers, as many of which leave a record, and each of these has ended so
    /// many steps in it.
    pub(super) fn runs(&self, count: usize, world: usize, steps: usize) -> bool {
        let Some(round) = self.round() else {
            return false;
        };
        let workers = self.of_round(round);
        let is_ready =
            |worker: &&Worker| worker.world_size as usize == world && worker.steps.len() >= steps;
        workers.len() == count && workers.iter().all(is_ready)
    }

    /// The longest time between two steps of one worker, in milliseconds, among those that ended between two times.
    pub(super) fn slowest_step(&self, from: u64, to: u64) -> f64 {
        let pairs = self.workers().flat_map(|worker| worker.steps.windows(2));
        let inside = pairs.filter(|pair| pair[1].time > from && pair[1].time <= to);
        let longest = inside.map(|pair| pair[1].time - pair[0].time).max();
        longest.unwrap_or(0) as f64 / 1e6
    }

    /// Times at which workers of two rounds ran: pairs of rounds.
    pub(super) fn overlaps(&self) -> Vec<(u64, u64)> {
        let mut spans: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for worker in self.workers() {
            let span = spans.entry(worker.round).or_insert((u64::MAX, 0));
            span.0 = span.0.min(worker.began);
            span.1 = span.1.max(worker.last());
        }
        let spans: Vec<_> = spans.into_iter().collect();
        let mut found = Vec::new();
        for (index, (older, (_, last))) in spans.iter().enumerate() {
            let later = spans[index + 1..].iter();
            found.extend(
                later
                    .filter(|(_, (began, _))| began < last)
                    .map(|(newer, _)| (*older, *newer)),
            );
        }
        found
    }

    /// Times at which *all* workers of two rounds ran: pairs of rounds.
    pub(super) fn whole_overlaps(&self) -> Vec<(u64, u64)> {
        let rounds: BTreeSet<u64> = self.workers().map(|worker| worker.round).collect();
        let whole: Vec<(u64, u64, u64)> = rounds
            .into_iter()
            .filter_map(|round| {
                let workers = self.of_round(round);
                let first = workers.first()?;
                let is_whole = workers.len() == first.world_size as usize;
                let began = workers.iter().map(|worker| worker.began).max()?;
                let last = workers.iter().map(|worker| worker.last()).min()?;
                is_whole.then_some((round, began, last))
            })
            .collect();
        let mut found = Vec::new();
        for (index, (older, began, last)) in whole.iter().enumerate() {
            let later = whole[index + 1..].iter();
            let at_once = later.filter(|(_, from, to)| from < last && began < to);
            found.extend(at_once.map(|(newer, _, _)| (*older, *newer)));
        }
        found
    }

    /// The loss after each step. A step that was done twice counts once; the second is the largest difference between two
    /// losses of one step.
    pub(super) fn losses(&self) -> (BTreeMap<u64, f64>, f64) {
        let mut losses = BTreeMap::new();
        let mut widest: f64 = 0.0;
        for step in self.workers().flat_map(|worker| &worker.steps) {
            let first = *losses.entry(step.number).or_insert(step.loss);
            widest = widest.max((first - step.loss).abs());
        }
        (losses, widest)
    }

    /// Steps that were done again, because a checkpoint did not have them.
    pub(super) fn repeated(&self) -> usize {
        let mut done: BTreeMap<u64, u64> = BTreeMap::new();
        let mut repeated = 0;
        for worker in self.workers().filter(|worker| worker.rank == 0) {
            for step in &worker.steps {
                let round = done.entry(step.number).or_insert(worker.round);
                repeated += usize::from(*round != worker.round);
            }
        }
        repeated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(files: &[&str]) -> Record {
        let folder = tempfile::tempdir().unwrap();
        let mut record = Record::new(folder.path().join("steps")).unwrap();
        for (number, text) in files.iter().enumerate() {
            fs::write(folder.path().join("steps").join(number.to_string()), text).unwrap();
        }
        record.read().unwrap();
        record
    }

    const FIRST: &str = "began 10 0 0 2 41 0 1\nstep 1 20 0.5\nstep 2 30 0.25\n";

    #[test]
    fn a_round_runs_when_each_of_its_workers_has_done_its_steps() {
        let one = record(&[FIRST]);
        assert!(
            one.runs(1, 2, 2) && !one.runs(1, 2, 3) && !one.runs(2, 2, 1) && !one.runs(1, 1, 2)
        );
        let both = record(&[FIRST, "began 11 0 1 2 42 0 2\nstep 1 21 0.5\n"]);
        assert!(both.runs(2, 2, 1) && !both.runs(2, 2, 2));
        let next = record(&[FIRST, "began 40 1 0 1 43 0 3\n"]);
        assert!(next.runs(1, 1, 0) && !next.runs(1, 1, 1));
    }

    #[test]
    fn workers_of_two_rounds_at_one_time_are_found() {
        let later = "began 31 1 0 1 43 0 3\nstep 3 40 0.1\n";
        assert_eq!(record(&[FIRST, later]).overlaps(), []);
        let early = "began 29 1 0 1 43 0 3\n";
        assert_eq!(record(&[FIRST, early]).overlaps(), [(0, 1)]);
    }

    #[test]
    fn two_whole_rounds_at_one_time_are_found() {
        let second = "began 11 0 1 2 42 0 2\nstep 1 21 0.5\nstep 2 32 0.25\n";
        // One of the workers of the first round had ended before.
        let later = "began 31 1 0 1 43 0 3\nstep 3 40 0.1\n";
        assert_eq!(record(&[FIRST, second, later]).whole_overlaps(), []);
        let early = "began 25 1 0 1 43 0 3\nstep 3 40 0.1\n";
        let both = record(&[FIRST, second, early]).whole_overlaps();
        assert_eq!(both, [(0, 1)]);
        // A round of which a worker never began is not whole.
        assert_eq!(record(&[FIRST, early]).whole_overlaps(), []);
    }

    #[test]
    fn machines_that_go_on_are_those_with_a_step_since_then() {
        let other = "began 31 1 1 2 43 0 2\nstep 3 40 0.1\nstep 5 50 0.1\n";
        let record = record(&[FIRST, other]);
        assert_eq!(record.stepping(10), BTreeMap::from([(1, 0), (2, 1)]));
        assert_eq!(record.stepping(30), BTreeMap::from([(2, 1)]));
        assert_eq!(record.skipping(), 1);
    }

    #[test]
    fn steps_that_were_done_again_are_counted_and_compared() {
        let again = "began 40 1 0 2 43 0 3\nstep 2 50 0.2\nstep 3 61 0.1\n";
        let record = record(&[FIRST, again]);
        let (losses, widest) = record.losses();
        assert_eq!(losses.len(), 3);
        assert!((widest - 0.05).abs() < 1e-9);
        assert_eq!(record.repeated(), 1);
        assert!((record.slowest_step(0, 100) - 11e-6).abs() < 1e-12);
    }
}
