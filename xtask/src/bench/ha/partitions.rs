//! K5: machines of five voters, with a fence, stop reaching one another; nobody is told.
//!
//! | figure | what |
//! |---|---|
//! | a coordinator | from the cut until exactly one voter coordinates, and reaches a majority of them both ways |
//! | a round | from the cut until those that the coordinator reaches both ways, and nobody else, run the workers of one round |
//! | needless rounds | beside the one that follows where somebody cannot be reached |

use std::collections::BTreeSet;
use std::time::Duration;

use super::draw::Draw;
use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan};
use super::probe::coordinates;
use super::{Tools, milliseconds, now};

pub(super) const NODES: usize = 5;
const STEPS: usize = 3;
const MAJORITY: usize = 3;

/// The time for the voters to be complete again.
const REPAIR: Duration = Duration::from_millis(1_500);

/// Whose workers have not ended a step for so long stand still, or are gone.
const STILL: Duration = Duration::from_millis(400);

/// The time for which everything stays as it is after a cut, and for which there is no majority.
const HELD: Duration = Duration::from_secs(10);

/// Most milliseconds until there is a coordinator again (C7), and until the workers go on when there is a majority again.
const COORDINATED: f64 = 5_000.0;
const CONTINUED: f64 = 1_500.0;

/// A machine that flaps: how often it comes and goes, and for how long each time.
const FLAPS: usize = 60;
const FLAP: Duration = Duration::from_millis(500);

/// Whether one machine reaches another, by their positions from 0.
pub(super) struct Cut {
    pub(super) name: &'static str,
    pub(super) reaches: fn(usize, usize) -> bool,
}

pub(super) const CUTS: [Cut; 6] = [
    Cut {
        name: "parts of 2 and 3",
        reaches: |from, to| (from < 2) == (to < 2),
    },
    Cut {
        name: "parts of 1 and 4",
        reaches: |from, to| (from < 1) == (to < 1),
    },
    Cut {
        name: "chain",
        reaches: |from, to| from.abs_diff(to) == 1,
    },
    Cut {
        name: "hub",
        reaches: |from, to| from == 0 || to == 0,
    },
    Cut {
        name: "one-way from a machine to all",
        reaches: |from, _| from != 0,
    },
    Cut {
        name: "one-way from a machine to another",
        reaches: |from, to| (from, to) != (0, 1),
    },
];

/// No part of these has a majority.
const PARTS: [usize; NODES] = [0, 0, 1, 1, 2];

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let mut plan = Plan::counting(Place::Voters(NODES));
    (plan.nodes, plan.nnodes) = (NODES, "3:5");
    plan.conf.push_str(",fence=auto");
    let mut job = Job::start(tools, plan)?;
    let mut draw = Draw::new(5);
    let mut seen: Vec<Seen> = CUTS.iter().map(|_| Seen::default()).collect();
    let (mut continued, mut disturbed) = (Vec::new(), [0; 2]);
    for _ in 0..runs {
        for (cut, seen) in CUTS.iter().zip(&mut seen) {
            play(&mut job, cut, draw.machine(NODES), seen)?;
        }
        let first = draw.machine(NODES);
        continued.push(without_majority(&mut job, first, &mut disturbed[0])?);
        disturbed[1] += flap(&mut job, draw.machine(NODES))?;
    }
    let failed = job.end()?;
    for (cut, seen) in CUTS.iter().zip(&seen) {
        let name = |what: &str| format!("K5, five voters, {} {runs} times: {what}", cut.name);
        figures.times(&name("a coordinator"), &seen.coordinated, Some(COORDINATED));
        figures.times(&name("a round"), &seen.formed, None);
        figures.exactly(name("needless rounds"), seen.needless, 0);
    }
    let name = |what: &str| format!("K5, five voters, {runs} times: {what}");
    let still = HELD.as_secs();
    figures.times(
        &name(&format!("no majority for {still} s, workers go on")),
        &continued,
        Some(CONTINUED),
    );
    let skipping = job.record.skipping();
    figures.exactly(
        name("no majority, workers that are others"),
        disturbed[0],
        0,
    );
    figures.exactly(name("workers that have lost a step"), skipping, 0);
    figures.exactly(
        name("a machine flaps for 60 s, new rounds"),
        disturbed[1],
        0,
    );
    let overlaps = job.record.overlaps().len();
    figures.exactly(name("pairs of rounds at one time"), overlaps, 0);
    figures.exactly(name("nodes that did not end with 0"), failed, 0);
    Ok(())
}

#[derive(Default)]
struct Seen {
    coordinated: Vec<f64>,
    formed: Vec<f64>,
    needless: usize,
}

/// The position of a machine, where this one is the first.
pub(super) fn position(machine: usize, first: usize) -> usize {
    (machine + NODES - first) % NODES
}

/// The machines that one reaches both ways, itself among them.
fn reached(cut: &Cut, from: usize, first: usize) -> BTreeSet<usize> {
    let own = position(from, first);
    let is_reached = |machine: &usize| {
        let other = position(*machine, first);
        other == own || (cut.reaches)(own, other) && (cut.reaches)(other, own)
    };
    (1..=NODES).filter(is_reached).collect()
}

fn coordinators(job: &Job<'_>) -> Vec<usize> {
    let is_one = |number: &usize| coordinates(job.address(*number));
    job.nodes().filter(is_one).collect()
}

/// Waits until all nodes are in one round, and the voters are complete. Returns its number.
fn whole(job: &mut Job<'_>) -> anyhow::Result<u64> {
    let mut round = 0;
    job.wait_for("round of all nodes", LONGEST, |job| {
        let (together, of) = running(job)?;
        round = of;
        Ok(together.len() == NODES && job.record.runs(NODES, NODES, STEPS))
    })?;
    pass(REPAIR);
    Ok(round)
}

/// The machines whose workers run, if all are in one round, and its number.
fn running(job: &mut Job<'_>) -> anyhow::Result<(BTreeSet<usize>, u64)> {
    pass(Duration::from_millis(10));
    job.record.read()?;
    let since = now().saturating_sub(nanoseconds(STILL));
    let stepping = job.record.stepping(since);
    let rounds: BTreeSet<u64> = stepping.values().copied().collect();
    match rounds.len() {
        1 => Ok((
            stepping.into_keys().collect(),
            *rounds.first().unwrap_or(&0),
        )),
        _ => Ok((BTreeSet::new(), 0)),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn play(job: &mut Job<'_>, cut: &Cut, first: usize, seen: &mut Seen) -> anyhow::Result<()> {
    let round = whole(job)?;
    let time = now();
    job.network
        .set_paths(|from, to| (cut.reaches)(position(from, first), position(to, first)))?;
    let mut expected = BTreeSet::new();
    job.wait_for("one coordinator with a majority", LONGEST, |job| {
        expected = match coordinators(job)[..] {
            [one] => reached(cut, one, first),
            _ => BTreeSet::new(),
        };
        Ok(expected.len() >= MAJORITY)
    })?;
    seen.coordinated.push(milliseconds(time, now()));
    let mut next = round;
    job.wait_for("round of those that can be reached", LONGEST, |job| {
        // Somebody else may coordinate after all.
        if let [one] = coordinators(job)[..] {
            expected = reached(cut, one, first);
        }
        let (together, of) = running(job)?;
        next = of;
        Ok(together == expected)
    })?;
    seen.formed.push(milliseconds(time, now()));
    pass(HELD.saturating_sub(Duration::from_nanos(now().saturating_sub(time))));
    let follows = u64::from(expected.len() < NODES);
    job.record.read()?;
    let newest = job.record.round().unwrap_or(next);
    seen.needless += usize::try_from(newest.saturating_sub(round + follows))?;
    job.network.set_paths(|_, _| true)
}

/// No voter reaches a majority for a time. Returns the milliseconds until all workers go on.
fn without_majority(job: &mut Job<'_>, first: usize, others: &mut usize) -> anyhow::Result<f64> {
    let round = whole(job)?;
    let workers = job.record.workers().count();
    let part = |machine: usize| PARTS[position(machine, first)];
    job.network.set_paths(|from, to| part(from) == part(to))?;
    let cut = now();
    job.wait_for("standstill of all workers", LONGEST, |job| {
        Ok(running(job)?.0.is_empty())
    })?;
    pass(HELD.saturating_sub(Duration::from_nanos(now().saturating_sub(cut))));
    let healed = now();
    job.network.set_paths(|_, _| true)?;
    let mut last = 0;
    job.wait_for("steps of all workers", LONGEST, |job| {
        job.record.read()?;
        let stepping = job.record.stepping(healed);
        last = now();
        Ok(stepping.len() == NODES)
    })?;
    let is_same = whole(job)? == round;
    *others += job.record.workers().count() - workers + usize::from(!is_same);
    Ok(milliseconds(healed, last))
}

/// A machine comes and goes. Returns the number of rounds that were formed meanwhile.
fn flap(job: &mut Job<'_>, flaps: usize) -> anyhow::Result<usize> {
    let round = whole(job)?;
    for _ in 0..FLAPS {
        job.network
            .set_paths(|from, to| from != flaps && to != flaps)?;
        pass(FLAP);
        job.network.set_paths(|_, _| true)?;
        pass(FLAP);
    }
    Ok(usize::try_from(whole(job)? - round)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_are_reached_are_reached_both_ways() {
        let count = |name: &str, from| {
            let cut = CUTS.iter().find(|cut| cut.name == name).unwrap();
            reached(cut, from, 1).len()
        };
        assert_eq!(
            (count("parts of 2 and 3", 1), count("parts of 2 and 3", 5)),
            (2, 3)
        );
        assert_eq!((count("chain", 1), count("chain", 3)), (2, 3));
        assert_eq!((count("hub", 1), count("hub", 2)), (5, 2));
        assert_eq!(count("one-way from a machine to all", 1), 1);
        assert_eq!(count("one-way from a machine to another", 1), 4);
        // Another machine is the first.
        assert_eq!(reached(&CUTS[1], 3, 3), BTreeSet::from([3]));
    }
}
