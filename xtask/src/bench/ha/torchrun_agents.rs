//! K8: an agent of torchrun takes part in a job of three of ours; it, another agent and the coordinator are killed.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan};
use super::{Tools, milliseconds, now};
use crate::bench::launcher::signal;

/// Nodes of ours; the one of torchrun is on the next machine.
const OURS: usize = 3;
const THEIRS: usize = OURS + 1;
const STEPS: usize = 3;

/// Agents have lived longer than those after whose death there is a pause.
const SETTLED: Duration = Duration::from_millis(1_300);

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let plan = Plan {
        nodes: OURS,
        ..Plan::counting(Place::Open)
    };
    let mut job = Job::start(tools, plan)?;
    let (mut theirs, mut other, mut coordinator, mut least) = (vec![], vec![], vec![], 0);
    let mut torchrun = job.start_torchrun(THEIRS)?;
    for _ in 0..runs {
        // Its own death: it is missed by its heartbeats.
        let round = both(&mut job, least)?;
        let killed = now();
        torchrun.kill()?;
        torchrun.wait()?;
        theirs.push(ours_alone(&mut job, round + 1, killed)?);
        torchrun = job.start_torchrun(THEIRS)?;
        // That of an agent of ours.
        let round = both(&mut job, round + 2)?;
        let agent = job.agent(2).context("an agent is missing")?;
        let killed = now();
        signal(agent, Signal::SIGKILL)?;
        let next = both(&mut job, round + 1)?;
        other.push(milliseconds(killed, now()));
        // That of the one which coordinates, with which agents of torchrun end.
        let agent = job.agent(1).context("an agent is missing")?;
        let killed = now();
        signal(agent, Signal::SIGKILL)?;
        coordinator.push(ours_alone(&mut job, next + 1, killed)?);
        job.wait_for("end of torchrun", LONGEST, |_| {
            Ok(torchrun.try_wait()?.is_some())
        })?;
        least = next + 2;
        torchrun = job.start_torchrun(THEIRS)?;
    }
    both(&mut job, least)?;
    let failed = job.end()?;
    torchrun.wait()?;
    let name = |what: &str| format!("K8, three nodes and one of torchrun, {runs} times: {what}");
    figures.times(
        &name("agent of torchrun killed, to the next round of ours"),
        &theirs,
        None,
    );
    figures.times(
        &name("agent of ours killed, to steps of the next round of all"),
        &other,
        None,
    );
    figures.times(
        &name("coordinator killed, to the next round of ours"),
        &coordinator,
        None,
    );
    figures.exactly(name("nodes of ours that did not end with 0"), failed, 0);
    Ok(())
}

/// Waits for a round of all four, with steps of the workers of ours.
fn both(job: &mut Job<'_>, least: u64) -> anyhow::Result<u64> {
    let round = job.wait_for_share("round with torchrun", OURS, THEIRS, STEPS, least)?;
    pass(SETTLED);
    Ok(round)
}

/// Waits for a round of ours alone. Returns the milliseconds until its last worker began.
fn ours_alone(job: &mut Job<'_>, least: u64, since: u64) -> anyhow::Result<f64> {
    let round = job.wait_for_share("round of ours", OURS, OURS, STEPS, least)?;
    let workers = job.record.of_round(round);
    let began = workers.iter().map(|worker| worker.began).max();
    Ok(milliseconds(since, began.unwrap_or_default()))
}
