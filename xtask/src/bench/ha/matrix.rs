//! The failure matrix: each death and cut once, with one voter and with three, and the table of `docs/high-availability.md`.
//!
//! | figure | from | to |
//! |---|---|---|
//! | told | the death | the last of the other agents has stopped its workers for a new round, or has seen them end |
//! | formed | the end of the last of these workers | the last of the other agents is in the next round |
//! | waits | the death | the sentence on the screens of the others |

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use anyhow::Context;
use nix::sys::signal::Signal;

use super::events::{self, Event};
use super::figures::Figures;
use super::job::{Job, LONGEST, Place, Plan, Workers, pass};
use super::store_kills::coordinates;
use super::{Tools, milliseconds, now, tree};
use crate::bench::launcher::signal;
use crate::bench::table::figure;
use crate::command::root;

const NODES: usize = 4;
const STEPS: usize = 3;

/// The voters are complete, and agents have lived longer than those after whose death there is a pause.
const SETTLED: Duration = Duration::from_millis(1_300);

/// Most milliseconds until people are told what is waited for.
const SAID: f64 = 3_500.0;

/// The lines between which the table stands in the document.
const BEGIN: &str = "<!-- made by `cargo xtask bench ha matrix` -->\n";
const END: &str = "<!-- end -->\n";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Death {
    Agent,
    Launcher,
    AgentAndLauncher,
    /// The cable of the machine is cut.
    Machine,
    /// The agent is stopped (SIGSTOP).
    Stopped,
}

struct Row {
    dies: &'static str,
    death: Death,
    /// Whether it is the node with the coordinator.
    coordinates: bool,
    /// The bounds of the design: told and formed in milliseconds, or none where the job waits; with one voter, and with three.
    bounds: [Option<(f64, f64)>; 2],
}

const ROWS: [Row; 9] = [
    Row {
        dies: "an agent without the coordinator",
        death: Death::Agent,
        coordinates: false,
        bounds: [Some((60.0, 20.0)), Some((60.0, 20.0))],
    },
    Row {
        dies: "the agent with the coordinator",
        death: Death::Agent,
        coordinates: true,
        bounds: [Some((80.0, 20.0)), Some((150.0, 20.0))],
    },
    Row {
        dies: "a keeper without the coordinator",
        death: Death::Launcher,
        coordinates: false,
        bounds: [Some((1_000.0, 20.0)), Some((1_000.0, 20.0))],
    },
    Row {
        dies: "an agent and its keeper, without the coordinator",
        death: Death::AgentAndLauncher,
        coordinates: false,
        bounds: [Some((250.0, 20.0)), Some((3_700.0, 20.0))],
    },
    Row {
        dies: "the agent with the coordinator, and its keeper",
        death: Death::AgentAndLauncher,
        coordinates: true,
        bounds: [None, Some((3_700.0, 20.0))],
    },
    Row {
        dies: "a machine without the coordinator (cable)",
        death: Death::Machine,
        coordinates: false,
        bounds: [Some((3_700.0, 20.0)), Some((3_700.0, 20.0))],
    },
    Row {
        dies: "the machine with the coordinator (cable)",
        death: Death::Machine,
        coordinates: true,
        bounds: [None, Some((3_700.0, 20.0))],
    },
    Row {
        dies: "an agent without the coordinator is stopped (SIGSTOP)",
        death: Death::Stopped,
        coordinates: false,
        bounds: [Some((15_300.0, 20.0)), Some((15_300.0, 20.0))],
    },
    Row {
        dies: "the agent with the coordinator is stopped (SIGSTOP)",
        death: Death::Stopped,
        coordinates: true,
        bounds: [None, Some((15_300.0, 20.0))],
    },
];

/// The times and sentences that followed.
enum Outcome {
    /// Milliseconds.
    Formed { known: f64, formed: f64 },
    /// The sentence, and milliseconds until it stood on all screens.
    Waits { said: f64, sentence: String },
}

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    // Once is enough for a table; `--runs` is about the others.
    let _ = runs;
    let mut table = String::from(
        "| dies | one voter: told, formed | asked for | three voters: told, formed | asked for |\n|---|---|---|---|---|\n",
    );
    for row in &ROWS {
        let mut cells = String::new();
        for (place, bounds) in [Place::First, Place::Voters].into_iter().zip(row.bounds) {
            let how = match place {
                Place::Voters => "three voters",
                _ => "one voter",
            };
            let outcome = play(tools, place, row, bounds.is_none());
            let outcome = outcome.with_context(|| format!("{}, {how}", row.dies))?;
            let name = format!("matrix, {how}, {}", row.dies);
            let (seen, asked) = add(figures, &name, &outcome, bounds);
            let _ = write!(cells, " {seen} | {asked} |");
        }
        let _ = writeln!(table, "| {} |{cells}", row.dies);
    }
    write_table(&table)
}

fn add(
    figures: &mut Figures,
    name: &str,
    outcome: &Outcome,
    bounds: Option<(f64, f64)>,
) -> (String, String) {
    match outcome {
        Outcome::Formed { known, formed } => {
            let (known_bound, formed_bound) = bounds.unwrap_or((f64::NAN, f64::NAN));
            figures.within(format!("{name}: told"), *known, known_bound);
            figures.within(format!("{name}: formed"), *formed, formed_bound);
            let text =
                |known: f64, formed: f64| format!("{} ms, {} ms", figure(known), figure(formed));
            (text(*known, *formed), text(known_bound, formed_bound))
        }
        Outcome::Waits { said, sentence } => {
            figures.within(format!("{name}: \"{sentence}\""), *said, SAID);
            let seen = format!("waits; said after {} s", figure(said / 1e3));
            (seen, "waits (W1)".to_owned())
        }
    }
}

fn play(tools: &Tools, place: Place, row: &Row, waits: bool) -> anyhow::Result<Outcome> {
    let plan = Plan {
        nnodes: "3:4",
        workers: Workers::Plain,
        conf: "last_call_timeout=1".to_owned(),
        ..Plan::new(place)
    };
    let mut job = Job::start(tools, plan)?;
    let round = job.wait_for_steps(NODES, STEPS)?;
    pass(SETTLED);
    let coordinator = match place {
        Place::Voters => (1..=3).find(|number| coordinates(job.address(*number))),
        _ => Some(1),
    };
    let coordinator = coordinator.context("nobody coordinates")?;
    let number = match row.coordinates {
        true => coordinator,
        // Another voter, where there is one.
        false => coordinator % 3 + 1,
    };
    let before: Vec<usize> = job
        .nodes()
        .map(|number| job.console(number).len())
        .collect();
    let launcher = job.launcher(number)?;
    let agent = job.agent(number).context("an agent is missing")?;
    let time = now();
    match row.death {
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
    let outcome = match waits {
        true => said(&mut job, number, time, &before)?,
        false => formed(&mut job, number, time)?,
    };
    // Afterwards the job goes on with all nodes.
    match row.death {
        Death::Agent => {}
        Death::Launcher | Death::AgentAndLauncher => {
            job.wait_for("end of a node", LONGEST, |job| {
                Ok(job.ended(number)?.is_some())
            })?;
            job.start_node(number)?;
        }
        Death::Machine => job.network.set_cable(number, true)?,
        Death::Stopped => {
            // The launcher passes it on, and a process that was killed meanwhile needs none.
            let _ = signal(agent, Signal::SIGCONT);
        }
    }
    let least = if waits && row.death != Death::AgentAndLauncher {
        round
    } else {
        round + 1
    };
    job.wait_for_round("round of all nodes afterwards", NODES, STEPS, least)?;
    anyhow::ensure!(
        tree::first_child(job.launcher(number)?).is_some(),
        "no guard"
    );
    Ok(outcome)
}

/// Waits until all other agents are in another round.
fn formed(job: &mut Job<'_>, dead: usize, time: u64) -> anyhow::Result<Outcome> {
    let others: Vec<usize> = job.nodes().filter(|number| *number != dead).collect();
    let (mut known, mut ended, mut formed) = (0, 0, 0);
    job.wait_for("next round", LONGEST, |job| {
        (known, ended, formed) = (0, 0, 0);
        for number in &others {
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

/// Waits until all other agents say that they wait.
fn said(job: &mut Job<'_>, dead: usize, time: u64, before: &[usize]) -> anyhow::Result<Outcome> {
    let others: Vec<usize> = job.nodes().filter(|number| *number != dead).collect();
    let mut sentence = String::new();
    job.wait_for("sentence about a wait", LONGEST, |job| {
        for number in &others {
            let console = job.console(*number);
            let new = console.get(before[number - 1]..).unwrap_or_default();
            match new.lines().find(|line| line.contains("is waited for")) {
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

fn write_table(table: &str) -> anyhow::Result<()> {
    let path = root().join("docs/high-availability.md");
    let text = fs::read_to_string(&path)?;
    let (before, rest) = text
        .split_once(BEGIN)
        .context("the document has no place for it")?;
    let (_, after) = rest
        .split_once(END)
        .context("the place in the document has no end")?;
    fs::write(&path, format!("{before}{BEGIN}\n{table}\n{END}{after}"))?;
    Ok(())
}
