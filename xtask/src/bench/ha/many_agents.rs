//! K9: 10,000 agents hold a round, all in one process with a connection each, and the coordinator is killed.
//!
//! With one voter that is the service of `rdzv store`; the round holds, and then one agent joins again. With three voters it is
//! the agent of a node that takes part; its workers end with it, so the next round follows by itself.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::figures::Figures;
use super::job::{Job, LONGEST, pass};
use super::plan::{Place, Plan, Workers};
use super::{Tools, milliseconds, now};
use crate::bench::launcher::signal;

const AGENTS: u64 = 10_000;

/// `--nnodes`, with those of the voters.
const NODES: [(usize, &str); 2] = [(0, "10000"), (3, "10003")];

/// The time after which a node would stop its workers, in milliseconds.
const FENCE: u64 = 3_000;

/// The voters are complete, and agents have lived longer than those after whose death there is a pause.
const SETTLED: Duration = Duration::from_secs(3);

/// Most milliseconds until all agents are attached, and until they are in the next round.
const ATTACHED: f64 = 1_500.0;
const FORMED: f64 = 3_000.0;

/// All agents are on one machine, and each kill leaves 10,000 of its 28,000 ports unused for a minute. With this, the kernel
/// takes one of them again after a second.
const REUSE: &str = "/proc/sys/net/ipv4/tcp_tw_reuse";

pub(super) fn run(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    fs::write(REUSE, "1").with_context(|| format!("{REUSE} cannot be set"))?;
    one_voter(tools, runs, figures)?;
    three_voters(tools, runs, figures)
}

fn plan(place: Place, (nodes, nnodes): (usize, &'static str), conf: &str) -> Plan {
    Plan {
        nodes,
        nnodes,
        workers: Workers::Plain,
        pace: 1_000,
        conf: conf.to_owned(),
        ..Plan::new(place)
    }
}

fn one_voter(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let mut job = Job::start(tools, plan(Place::Store, NODES[0], ""))?;
    let endpoint = job.endpoint();
    job.wait_for("store", LONGEST, |job| Ok(job.is_served()))?;
    let mut crowd = Crowd::start(tools, &endpoint, NODES[0].1, 0)?;
    let (mut attached, mut formed) = (Vec::new(), Vec::new());
    let mut round = crowd.wait_for("joined", 0)?.number;
    for _ in 0..runs {
        pass(SETTLED);
        let service = job.service().context("no process of the store serves")?;
        let returns = crowd.returns()?;
        let killed = now();
        signal(service, Signal::SIGKILL)?;
        let fact = crowd.wait_for("attached", returns + AGENTS)?;
        attached.push(milliseconds(killed, fact.at));
        let again = now();
        crowd.input.write_all(b"again\n")?;
        let fact = crowd.wait_for("joined", round + 1)?;
        formed.push(milliseconds(again, fact.at));
        round = fact.number;
    }
    let name = |what: &str| {
        format!("K9, {AGENTS} agents, one voter, `rdzv store` killed {runs} times: {what}")
    };
    figures.times(&name("all attached again"), &attached, Some(ATTACHED));
    figures.times(
        &name("an agent joins again, to the next round"),
        &formed,
        Some(FORMED),
    );
    Ok(())
}

fn three_voters(tools: &Tools, runs: usize, figures: &mut Figures) -> anyhow::Result<()> {
    let job = Job::start(tools, plan(Place::Voters(3), NODES[1], "fence=auto"))?;
    let mut crowd = Crowd::start(tools, &job.addresses(), NODES[1].1, FENCE)?;
    let (mut attached, mut formed) = (Vec::new(), Vec::new());
    let mut round = crowd.wait_for("joined", 0)?.number;
    for _ in 0..runs {
        pass(SETTLED);
        let coordinator = job.coordinator().context("nobody coordinates")?;
        let agent = job.agent(coordinator).context("an agent is missing")?;
        let returns = crowd.returns()?;
        let killed = now();
        signal(agent, Signal::SIGKILL)?;
        let fact = crowd.wait_for("attached", returns + AGENTS)?;
        attached.push(milliseconds(killed, fact.at));
        let fact = crowd.wait_for("joined", round + 1)?;
        formed.push(milliseconds(killed, fact.at));
        round = fact.number;
    }
    let fenced = crowd.newest("fenced")?.map_or(0, |fact| fact.number);
    let name = |what: &str| {
        format!("K9, {AGENTS} agents, three voters, the coordinator killed {runs} times: {what}")
    };
    figures.times(&name("all attached again"), &attached, Some(ATTACHED));
    figures.times(&name("the next round"), &formed, Some(FORMED));
    figures.exactly(name("fences that fired"), usize::try_from(fenced)?, 0);
    Ok(())
}

/// Something that the crowd says.
#[derive(Debug, Clone)]
struct Fact {
    name: String,
    number: u64,
    at: u64,
}

/// The process with all agents.
struct Crowd {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    facts: Vec<Fact>,
}

impl Crowd {
    fn start(tools: &Tools, places: &str, nodes: &str, fence: u64) -> anyhow::Result<Self> {
        let program = tools.crowd.as_ref().context("the crowd was not built")?;
        let mut command = Command::new(program);
        command
            .args(["hold", places, "job", &AGENTS.to_string(), nodes])
            .arg(fence.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().context("failed to start the crowd")?;
        let input = process.stdin.take().context("it is piped")?;
        let output = process.stdout.take().context("it is piped")?;
        let (sender, lines) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            // Nobody listens to the rest any more.
            lines.into_iter().try_for_each(|line| sender.send(line))
        });
        Ok(Self {
            process,
            input,
            lines,
            facts: Vec::new(),
        })
    }

    fn add(&mut self, line: &str) -> anyhow::Result<()> {
        let value: Value =
            serde_json::from_str(line).with_context(|| format!("the crowd says '{line}'"))?;
        self.facts.push(Fact {
            name: value["fact"].as_str().unwrap_or_default().to_owned(),
            number: value["number"].as_u64().unwrap_or_default(),
            at: value["at"].as_u64().unwrap_or_default(),
        });
        Ok(())
    }

    /// Waits for the first fact of a name with at least this number.
    fn wait_for(&mut self, name: &str, least: u64) -> anyhow::Result<Fact> {
        let until = Instant::now() + LONGEST;
        loop {
            let is_it = |fact: &&Fact| fact.name == name && fact.number >= least;
            if let Some(fact) = self.facts.iter().find(is_it) {
                return Ok(fact.clone());
            }
            let left = until.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.add(&line)?,
                Err(error) => {
                    let last = self.facts.iter().rev().take(5).collect::<Vec<_>>();
                    bail!("no '{name}' from {least} on ({error}); the last facts: {last:?}");
                }
            }
        }
    }

    /// The last fact of a name so far.
    fn newest(&mut self, name: &str) -> anyhow::Result<Option<Fact>> {
        while let Ok(line) = self.lines.try_recv() {
            self.add(&line)?;
        }
        let mut newest = self.facts.iter().rev();
        Ok(newest.find(|fact| fact.name == name).cloned())
    }

    /// Agents that have come back so far.
    fn returns(&mut self) -> anyhow::Result<u64> {
        Ok(self.newest("attached")?.map_or(0, |fact| fact.number))
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // Both fail only when it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
