//! K3: any process of any node is killed, with a list of three endpoints and with one; a node whose first process was killed is started
//! again.

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::Tools;
use super::draw::Draw;
use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan};
use super::tree;
use crate::bench::launcher::signal;

const NODES: usize = 4;

/// Steps of each worker in a round of all nodes.
const STEPS: usize = 3;

/// The time for the voters to be complete again, before the next kill.
const REPAIR: Duration = Duration::from_secs(1);

/// The next kill varies by so many milliseconds.
const VARIATION: u64 = 300;

/// A second kill hits the new agent within so many milliseconds of its start.
const EARLY: u64 = 100;

/// The time for what is left of a node to end.
const CLEARED: Duration = Duration::from_secs(10);

/// The processes of a node, each with what the others are called in the figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Agent,
    /// The agent, and the one after it within its first moments.
    AgentTwice,
    Launcher,
    Guard,
    AgentAndLauncher,
    All,
}

const VICTIMS: [Victim; 6] = [
    Victim::Agent,
    Victim::AgentTwice,
    Victim::Launcher,
    Victim::Guard,
    Victim::AgentAndLauncher,
    Victim::All,
];

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    for (place, voters) in [
        (Place::Voters(3), "three voters"),
        (Place::Open, "voters by themselves"),
    ] {
        let name = format!("K3, {voters}, {runs} kills");
        play(tools, Plan::counting(place), runs, &name, figures).context(name)?;
    }
    Ok(())
}

fn play(
    tools: &Tools,
    plan: Plan,
    runs: usize,
    name: &str,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let mut job = Job::start(tools, plan)?;
    let mut draw = Draw::new(3);
    let mut counts = [0; VICTIMS.len()];
    let (mut least, mut orphans) = (0, 0);
    for kill in 1..=runs {
        let round = job.wait_for_round("round after a kill", NODES, STEPS, least)?;
        pass(REPAIR + Duration::from_millis(draw.below(VARIATION)));
        orphans += left_over(&mut job)?;
        let number = draw.machine(NODES);
        let kind = draw.below(VICTIMS.len() as u64) as usize;
        counts[kind] += 1;
        let death = strike(&mut job, &mut draw, number, VICTIMS[kind]);
        death.with_context(|| format!("kill {kill}: {:?} of node {number}", VICTIMS[kind]))?;
        least = round + 1;
    }
    job.wait_for_round("round after the last kill", NODES, STEPS, least)?;
    pass(REPAIR);
    orphans += left_over(&mut job)?;
    let failed = job.end()?;

    let name = |what: &str| format!("{name}: {what}");
    let kinds = VICTIMS.iter().zip(counts);
    let kinds = kinds.map(|(victim, count)| format!("{victim:?} {count}"));
    figures.tell(name("of"), kinds.collect::<Vec<_>>().join(", "));
    figures.exactly(name("nodes that did not end with 0"), failed, 0);
    figures.exactly(name("processes that were left"), orphans, 0);
    let overlaps = job.record.overlaps();
    figures.tell(
        name("pairs of rounds at one time"),
        format!("{} {overlaps:?}", overlaps.len()),
    );
    Ok(())
}

fn strike(job: &mut Job<'_>, draw: &mut Draw, number: usize, victim: Victim) -> anyhow::Result<()> {
    let launcher = job.launcher(number)?;
    let guard = tree::first_child(launcher).context("a guard is missing")?;
    let agent = tree::agent(guard).context("an agent is missing")?;
    let killed: &[u32] = match victim {
        Victim::Agent | Victim::AgentTwice => &[agent],
        Victim::Launcher => &[launcher],
        Victim::Guard => &[guard],
        Victim::AgentAndLauncher => &[agent, launcher],
        Victim::All => &[launcher, guard, agent],
    };
    for process in killed {
        // With the one before it may have ended already.
        let _ = signal(*process, Signal::SIGKILL);
    }
    if victim == Victim::AgentTwice {
        let mut next = None;
        job.wait_for("next agent", LONGEST, |job| {
            next = job.agent(number).filter(|next| *next != agent);
            Ok(next.is_some())
        })?;
        pass(Duration::from_millis(draw.below(EARLY)));
        let next = next.context("there is one")?;
        signal(next, Signal::SIGKILL)?;
    }
    if !matches!(victim, Victim::Agent | Victim::AgentTwice) {
        job.replace_node(number)?;
    }
    Ok(())
}

/// Processes that do not end, though nobody who could end them is left.
fn left_over(job: &mut Job<'_>) -> anyhow::Result<usize> {
    let mut left = Vec::new();
    let cleared = job.wait_for("end of all orphans", CLEARED, |_| {
        left = tree::orphans();
        Ok(left.is_empty())
    });
    if let Err(error) = cleared {
        println!("    {error:#}: {left:?}");
    }
    Ok(left.len())
}
