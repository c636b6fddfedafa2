//! K1: the store in which the agents meet is killed again and again, while the workers train.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::draw::Draw;
use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan};
use super::probe::coordinates;
use super::{Tools, milliseconds, now};
use crate::bench::launcher::signal;

/// A life that is shorter than a second is followed by a pause, so each store lives as long as this at least.
const LIFE: Duration = Duration::from_millis(1_050);

/// The time between two kills varies by so many milliseconds.
const VARIATION: u64 = 200;

/// As long as the part with kills, for the same chance of a slow step; but not longer than this.
const QUIET: Duration = Duration::from_secs(60);

/// The most by which the slowest step may be longer than the slowest one without kills, in milliseconds.
const SLOWER: f64 = 50.0;

/// Most milliseconds until the store answers, and until the agents are connected again.
const BACK: f64 = 150.0;

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    for voters in [1, 3] {
        println!("    voters={voters}");
        kills(tools, runs, voters, figures)?;
    }
    Ok(())
}

fn kills(tools: &Tools, runs: usize, voters: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let plan = match voters {
        1 => Plan {
            conf: "voters=1".to_owned(),
            ..Plan::new(Place::Store)
        },
        _ => Plan::new(Place::StoreAmong(voters)),
    };
    let mut job = Job::start(tools, plan)?;
    let round = job.wait_for_steps(4, 50)?;
    let endpoint = job.address(job.store_machine());
    let mut draw = Draw::new(1);

    let quiet = now();
    let each = LIFE + Duration::from_millis(VARIATION / 2);
    let mut end = pass((each * runs as u32).min(QUIET));
    job.record.read()?;
    let slowest_before = job.record.slowest_step(quiet, end);

    let began = now();
    let (mut kills, mut back) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        pass(LIFE + Duration::from_millis(draw.below(VARIATION)));
        // Of three voters another one coordinates after the kill, until it hands over to the store, which has no workers.
        job.wait_for("store that coordinates", LONGEST, |_| {
            Ok(coordinates(endpoint))
        })?;
        let service = job.service().context("no process of the store serves")?;
        let killed = now();
        signal(service, Signal::SIGKILL)?;
        if voters == 1 {
            job.wait_for("answer of the store", LONGEST, |_| {
                Ok(coordinates(endpoint))
            })?;
            back.push(milliseconds(killed, now()));
        }
        end = now();
        kills.push(killed);
    }
    end = end.max(pass(Duration::from_secs(1)));
    job.record.read()?;
    let slowest = job.record.slowest_step(began, end);

    let mut connected = Vec::new();
    for (index, killed) in kills.iter().enumerate() {
        let next = kills.get(index + 1).copied().unwrap_or(u64::MAX);
        let mut last = 0.0;
        for number in job.nodes() {
            let again = job.events(number)?.into_iter().find(|event| {
                let message = event.fields["message"].as_str().unwrap_or_default();
                let is_again = message.starts_with("connected to ") && message.contains(" again ");
                is_again && event.time > *killed && event.time < next
            });
            let again = again.with_context(|| {
                format!(
                    "node {number} did not connect again after kill {}",
                    index + 1
                )
            })?;
            last = f64::max(last, milliseconds(*killed, again.time));
        }
        connected.push(last);
    }
    let failed = job.end()?;
    let restarted = job.record.workers().count() - 4;
    let lost = lost_steps(&job, round);
    let name = |what: &str| format!("K1, voters={voters}, store killed {runs} times: {what}");
    figures.exactly(name("lost steps"), lost, 0);
    figures.exactly(name("workers that were started again"), restarted, 0);
    figures.exactly(name("nodes that did not end with 0"), failed, 0);
    figures.within(name("slowest step"), slowest, slowest_before + SLOWER);
    if voters == 1 {
        figures.times(&name("answers again"), &back, Some(BACK));
    }
    figures.times(&name("all agents connected again"), &connected, Some(BACK));
    Ok(())
}

/// Steps that are missing in the record of a worker, or were done by somebody else.
fn lost_steps(job: &Job<'_>, round: u64) -> usize {
    let workers = job.record.of_round(round);
    let last = workers.iter().filter_map(|worker| worker.steps.last());
    let last = last.map(|step| step.number).max().unwrap_or(0) as usize;
    let done = workers.iter().map(|worker| {
        let numbers = (1..).zip(&worker.steps);
        numbers
            .filter(|(number, step)| *number == step.number)
            .count()
    });
    done.map(|done| last - done).sum()
}
