//! Deaths and cuts that the failure matrix and the job on two nodes have in common.
//!
//! | figure | from | to |
//! |---|---|---|
//! | told | the death | the last of the other agents has stopped its workers for a new round, or has seen them end |
//! | formed | the end of the last of these workers | the last of the other agents is in the next round |
//! | waits | the death | the sentence on the screens of the others |

use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::events::{self, Event};
use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan};
use super::{Tools, milliseconds, now, tree};
use crate::bench::launcher::signal;
use crate::bench::table::figure;

const STEPS: usize = 3;

/// The voters are complete, agents have lived longer than those after whose death there is a pause, and the coordinator forms any
/// round: in its first 1.5 s it knows of no older one that may be there.
const SETTLED: Duration = Duration::from_millis(1_700);

/// Most milliseconds until people are told what is waited for.
pub(super) const SAID: f64 = 3_500.0;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Agent,
    Launcher,
    AgentAndLauncher,
    /// The cable of the machine is cut.
    Machine,
    /// The agent is stopped (SIGSTOP).
    Stopped,
}

/// A death, and what is asked for.
pub(super) struct Case {
    pub(super) dies: &'static str,
    pub(super) death: Death,
    /// Whether it is the node with the coordinator.
    pub(super) coordinates: bool,
    /// The bounds of the design: told and formed in milliseconds, or none where the job waits.
    pub(super) bounds: Option<(f64, f64)>,
}

/// The times and sentences that followed.
pub(super) enum Outcome {
    /// Milliseconds.
    Formed { known: f64, formed: f64 },
    /// The sentence, and milliseconds until it stood on all screens.
    Waits { said: f64, sentence: String },
}

/// The result of a case.
pub(super) struct Played {
    pub(super) outcome: Outcome,
    /// Pairs of rounds whose workers all ran at one time.
    pub(super) whole_overlaps: usize,
}

impl Played {
    /// Adds the figures. Returns them as cells of a table, beside those that are asked for.
    pub(super) fn add(&self, figures: &mut Figures, name: &str, case: &Case) -> (String, String) {
        match &self.outcome {
            Outcome::Formed { known, formed } => {
                let (known_bound, formed_bound) = case.bounds.unwrap_or((f64::NAN, f64::NAN));
                figures.within(format!("{name}: told"), *known, known_bound);
                figures.within(format!("{name}: formed"), *formed, formed_bound);
                let text = |known: f64, formed: f64| {
                    format!("{} ms, {} ms", figure(known), figure(formed))
                };
                (text(*known, *formed), text(known_bound, formed_bound))
            }
            Outcome::Waits { said, sentence } => {
                figures.within(format!("{name}: \"{sentence}\""), *said, SAID);
                let seen = format!("waits; said after {} s", figure(said / 1e3));
                (seen, "waits (W1)".to_owned())
            }
        }
    }
}

/// Plays a case, and has the job go on with all nodes afterwards.
pub(super) fn play(tools: &Tools, plan: Plan, case: &Case) -> anyhow::Result<Played> {
    let (nodes, place) = (plan.nodes, plan.place);
    let mut job = Job::start(tools, plan)?;
    let round = job.wait_for_steps(nodes, STEPS)?;
    pass(SETTLED);
    let coordinator = job.coordinator().context("nobody coordinates")?;
    let voters = match place {
        Place::Voters(count) => count,
        _ => nodes.min(3),
    };
    let number = match case.coordinates {
        true => coordinator,
        // Another voter, where there is one.
        false => coordinator % voters + 1,
    };
    let before = job.consoles();
    let launcher = job.launcher(number)?;
    let agent = job.agent(number).context("an agent is missing")?;
    let time = now();
    match case.death {
        Death::Agent => signal(agent, Signal::SIGKILL)?,
        Death::Launcher => signal(launcher, Signal::SIGKILL)?,
        Death::AgentAndLauncher => {
            signal(launcher, Signal::SIGKILL)?;
            // It may have ended already, because its launcher has.
            let _ = signal(agent, Signal::SIGKILL);
        }
        Death::Machine => job.network.set_cable(number, false)?,
        Death::Stopped => signal(agent, Signal::SIGSTOP)?,
    }
    let waits = case.bounds.is_none();
    let others = job.others(number);
    let outcome = match waits {
        true => said(&mut job, &others, "is waited for", time, &before)?,
        false => formed(&mut job, &others, time)?,
    };
    match case.death {
        Death::Agent => {}
        Death::Launcher | Death::AgentAndLauncher => {
            job.replace_node(number)?;
        }
        Death::Machine => job.network.set_cable(number, true)?,
        Death::Stopped => {
            // The launcher passes it on, and a process that was killed meanwhile needs none.
            let _ = signal(agent, Signal::SIGCONT);
        }
    }
    let keeps_round = matches!(case.death, Death::Machine | Death::Stopped);
    let least = if waits && keeps_round {
        round
    } else {
        round + 1
    };
    job.wait_for_round("round of all nodes afterwards", nodes, STEPS, least)?;
    anyhow::ensure!(
        tree::first_child(job.launcher(number)?).is_some(),
        "no guard"
    );
    Ok(Played {
        outcome,
        whole_overlaps: job.record.whole_overlaps().len(),
    })
}

/// Waits until all other agents are in another round.
fn formed(job: &mut Job<'_>, others: &[usize], time: u64) -> anyhow::Result<Outcome> {
    let (mut known, mut ended, mut formed) = (0, 0, 0);
    job.wait_for("next round", LONGEST, |job| {
        (known, ended, formed) = (0, 0, 0);
        for number in others {
            let events = job.events(*number)?;
            let Some(next) = events::formed(&events, time) else {
                return Ok(false);
            };
            let between = |names: &'static [&str]| {
                let between = events
                    .iter()
                    .filter(|event| event.time > time && event.time <= next.time);
                between.filter(|event: &&Event| names.contains(&event.name.as_str()))
            };
            let first = between(&["regrouping", "restarting", "worker_exited"]).next();
            known = known.max(first.map_or(next.time, |event| event.time));
            ended = between(&["worker_exited"])
                .map(|event| event.time)
                .fold(ended, u64::max);
            formed = formed.max(next.time);
        }
        Ok(true)
    })?;
    Ok(Outcome::Formed {
        known: milliseconds(time, known),
        formed: milliseconds(ended.max(known), formed),
    })
}

/// Waits until the screens of all these machines show a line with these words that was not there before.
pub(super) fn said(
    job: &mut Job<'_>,
    machines: &[usize],
    words: &str,
    time: u64,
    before: &[usize],
) -> anyhow::Result<Outcome> {
    let mut sentence = String::new();
    job.wait_for(&format!("line with '{words}'"), LONGEST, |job| {
        for number in machines {
            let console = job.console(*number);
            let new = console.get(before[number - 1]..).unwrap_or_default();
            match new.lines().find(|line| line.contains(words)) {
                Some(line) => sentence = line.to_owned(),
                None => return Ok(false),
            }
        }
        Ok(true)
    })?;
    Ok(Outcome::Waits {
        said: milliseconds(time, now()),
        sentence,
    })
}
