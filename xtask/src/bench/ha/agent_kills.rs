//! K2: one agent of four is killed, again and again, and started again below its guard.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::draw::Draw;
use super::events::Event;
use super::figures::Figures;
use super::job::{Job, pass};
use super::plan::{Place, Plan};
use super::{Tools, milliseconds, now};
use crate::bench::launcher::signal;

/// Nodes, each with one worker.
const NODES: usize = 4;

/// Steps of each worker before the next kill.
const STEPS: usize = 3;

/// The time until the next kill, after these steps, varies by so many milliseconds.
const VARIATION: u64 = 400;

/// Most milliseconds until all other agents know.
const KNOWN: f64 = 150.0;

/// Most milliseconds until the last new worker runs, without the time that the old ones took to end.
const BEGUN: f64 = 500.0;

/// Most that two losses of one step differ: additions in another order.
const SAME: f64 = 1e-9;

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    for (place, how) in [
        (Place::First, "one voter"),
        (Place::Voters(3), "three voters"),
        (Place::Open, "voters by themselves"),
    ] {
        println!("    {how}");
        kills(tools, runs, place, how, figures)?;
    }
    Ok(())
}

/// One kill, and what followed.
struct Kill {
    time: u64,
    node: usize,
}

fn kills(
    tools: &Tools,
    runs: usize,
    place: Place,
    how: &str,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let plan = Plan {
        max_restarts: 1_000,
        ..Plan::new(place)
    };
    let mut job = Job::start(tools, plan.clone())?;
    let mut draw = Draw::new(2);
    let mut kills: Vec<Kill> = Vec::new();
    let mut least = 0;
    for _ in 0..runs {
        let round = job.wait_for_round("round after a kill", NODES, STEPS, least)?;
        pass(Duration::from_millis(draw.below(VARIATION)));
        let node = draw.machine(NODES);
        let agent = job.agent(node).context("an agent is missing")?;
        let time = now();
        signal(agent, Signal::SIGKILL)?;
        kills.push(Kill { time, node });
        least = round + 1;
    }
    job.wait_for_round("round after the last kill", NODES, STEPS, least)?;
    let failed = job.end()?;

    let times = Times::of(&job, &kills)?;
    let (losses, widest) = job.record.losses();
    let repeated = job.record.repeated();
    let overlaps = job.record.overlaps().len();
    let restarts = job.record.workers().map(|worker| worker.restarts).max();
    // There is one network at a time.
    drop(job);
    let last = losses.keys().next_back().copied();
    let unbroken = unbroken(tools, plan, last)?;
    let differs = |(step, loss): (&u64, &f64)| {
        let other = unbroken.get(step);
        other.is_none_or(|other| (loss - other).abs() > SAME)
    };
    let differing = losses.iter().filter(|loss| differs(*loss)).count();

    let name = |what: &str| format!("K2, {how}, an agent killed {runs} times: {what}");
    figures.exactly(name("nodes that did not end with 0"), failed, 0);
    figures.exactly(
        name("losses other than those of an unbroken run"),
        differing + usize::from(widest > SAME),
        0,
    );
    figures.tell(
        name("steps, of which were done again"),
        format!("{}, {}", losses.len(), repeated),
    );
    figures.times(&name("the other agents know"), &times.known, Some(KNOWN));
    figures.times(&name("kill to the last new worker"), &times.begun, None);
    figures.times(
        &name("without the end of the old workers"),
        &times.without_end,
        Some(BEGUN),
    );
    figures.tell(
        name("kills after which a worker had failed before its agent knew; restarts used"),
        format!("{}, {}", times.failures, restarts.unwrap_or(0)),
    );
    figures.exactly(name("rounds at one time"), overlaps, 0);
    Ok(())
}

/// The losses of the same job if nobody is killed.
fn unbroken(
    tools: &Tools,
    plan: Plan,
    last_step: Option<u64>,
) -> anyhow::Result<BTreeMap<u64, f64>> {
    let plan = Plan {
        pace: 0,
        last_step,
        ..plan
    };
    let mut job = Job::start(tools, plan)?;
    job.wait_for_steps(NODES, 1)?;
    job.wait_for_end()?;
    job.record.read()?;
    Ok(job.record.losses().0)
}

/// Milliseconds after each kill.
#[derive(Default)]
struct Times {
    /// Until the last of the other agents knew.
    known: Vec<f64>,
    /// Until the last new worker ran.
    begun: Vec<f64>,
    without_end: Vec<f64>,
    /// Kills after which a worker failed before its agent knew.
    failures: usize,
}

impl Times {
    fn of(job: &Job<'_>, kills: &[Kill]) -> anyhow::Result<Self> {
        let mut times = Self::default();
        for (index, kill) in kills.iter().enumerate() {
            let began = job
                .record
                .workers()
                .filter(|worker| worker.began > kill.time);
            let next = began.map(|worker| worker.round).min();
            let next = next.context("no worker began after a kill")?;
            let workers = job.record.of_round(next);
            let begun = workers.iter().map(|worker| worker.began).max();
            let begun = begun.unwrap_or_default();
            let (mut known, mut longest_end, mut has_failure) = (0, 0, false);
            for number in job.nodes().filter(|number| *number != kill.node) {
                let events = job.events(number)?;
                let mut after = events
                    .iter()
                    .filter(|event| event.time > kill.time && event.time <= begun);
                let is_word = |event: &&Event| {
                    ["regrouping", "restarting", "worker_exited"].contains(&event.name.as_str())
                };
                let first = after.find(is_word).with_context(|| {
                    format!("node {number} said nothing after kill {}", index + 1)
                })?;
                has_failure |= first.name != "regrouping";
                known = known.max(first.time);
                let ended = events.iter().filter(|event| {
                    event.name == "worker_exited" && event.time > kill.time && event.time <= begun
                });
                let ended = ended.map(|event| event.time).max().unwrap_or(first.time);
                longest_end = longest_end.max(ended.saturating_sub(first.time));
            }
            times.known.push(milliseconds(kill.time, known));
            times.begun.push(milliseconds(kill.time, begun));
            let without = milliseconds(kill.time, begun.saturating_sub(longest_end));
            times.without_end.push(without);
            times.failures += usize::from(has_failure);
        }
        Ok(times)
    }
}
