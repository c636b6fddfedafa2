//! `cargo xtask bench rendezvous`: how long it takes until all agents of a round hold their rank,
//! and what that costs the store.
//!
//! Both sides are one process with all agents in it, each with a connection of its own over
//! loopback. PyTorch's are threads, and so are ours up to 128; from 1,000 on ours alone are
//! measured, as machines over one thread's sockets. The server is in PyTorch's process, and a
//! process of its own on our side. PyTorch's agents are given up after a minute; their figures are
//! lower bounds then, and said to be. Agents are connected before the clock starts, except where
//! both times are given.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::Server;
use super::table::{self, Better, Comparison, median};
use super::{arguments, reattach, test_program};
use crate::command::output;
use crate::install;

const DEFAULT_RUNS: usize = 3;

const PEER: &str = include_str!("rendezvous_peer.py");

/// Numbers of agents that both sides are measured with.
const BESIDE: [(u32, &str); 4] = [
    (8, "8 agents"),
    (32, "32 agents"),
    (64, "64 agents"),
    (128, "128 agents"),
];

/// Numbers of agents that ours alone are measured with.
const ALONE: [u32; 2] = [1_000, 10_000];

/// How many times faster 64 agents have to be.
const FASTER: f64 = 20.0;

/// Most operations of the store for each agent, however many there are.
const OPERATIONS: f64 = 10.0;

/// Most seconds until 10,000 agents are connected and hold their ranks.
const SECONDS: f64 = 10.0;

pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    if let Some(("reattach", rest)) = words
        .split_first()
        .map(|(word, rest)| (word.as_str(), rest))
    {
        return reattach::run(rest);
    }
    let runs = arguments::runs("rendezvous", words, DEFAULT_RUNS)?;
    let python = install::python()?;
    let crowd = test_program("crowd")?;
    let host = Server::start(Command::new(&crowd).arg("serve"))?;
    let mut ours = Ours { crowd, host };

    let mut times = BESIDE.map(|(agents, name)| {
        let target = if agents == 64 { FASTER } else { 1.0 };
        Comparison::new(name, "ms", Better::Less, target)
    });
    let mut operations =
        BESIDE.map(|(_, name)| Comparison::new(name, "operations each", Better::Less, 1.0));
    let mut bytes = BESIDE.map(|(_, name)| Comparison::new(name, "KB each", Better::Less, 1.0));
    let mut alone = ALONE.map(|_| Vec::new());
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (index, (agents, _)) in BESIDE.into_iter().enumerate() {
            let each = f64::from(agents);
            for is_ours in [true, false] {
                let round = match is_ours {
                    true => ours.round("threads", agents)?,
                    false => theirs(&python, agents)?,
                };
                times[index].add(is_ours, round.joined * 1e3);
                operations[index].add(is_ours, round.operations / each);
                bytes[index].add(is_ours, round.bytes / each / 1e3);
            }
        }
        for (index, agents) in ALONE.into_iter().enumerate() {
            alone[index].push(ours.round("many", agents)?);
        }
    }

    let all: Vec<Comparison> = times.into_iter().chain(operations).chain(bytes).collect();
    let title = format!("bench rendezvous, {runs} runs");
    let mut met = table::print(&title, "PyTorch", &all);
    let each = all[BESIDE.len()..2 * BESIDE.len()].iter();
    met &= each
        .map(|each| median(&each.ours))
        .all(|each| each <= OPERATIONS);
    println!("\n| rdzv alone | connected, s | ranks held, s | operations each | KB each |");
    println!("|---|---:|---:|---:|---:|");
    for (agents, rounds) in ALONE.into_iter().zip(&alone) {
        let middle = |figure: fn(&Round) -> f64| {
            let figures: Vec<f64> = rounds.iter().map(figure).collect();
            median(&figures)
        };
        let (connected, joined) = (
            middle(|round| round.connected),
            middle(|round| round.joined),
        );
        let each = middle(|round| round.operations) / f64::from(agents);
        let bytes = middle(|round| round.bytes) / f64::from(agents) / 1e3;
        println!("| {agents} agents | {connected:.3} | {joined:.3} | {each:.2} | {bytes:.2} |");
        met &= connected + joined <= SECONDS && each <= OPERATIONS;
    }
    println!(
        "\nasked for: 64 agents {FASTER} times faster, {OPERATIONS} operations for each agent at the \
         most, and 10,000 agents connected and with their ranks in {SECONDS} s"
    );
    ensure!(met, "a target was missed");
    Ok(())
}

/// One round of as many agents as were asked for.
struct Round {
    connected: f64,
    joined: f64,
    operations: f64,
    bytes: f64,
}

/// Our host, and the program of which each crowd is a process.
struct Ours {
    crowd: PathBuf,
    host: Server,
}

impl Ours {
    fn round(&mut self, how: &str, agents: u32) -> anyhow::Result<Round> {
        let before = self.host.peer.ask("")?;
        let words = [how, &self.host.address(), &agents.to_string()];
        let text = output(Command::new(&self.crowd).args(words))?;
        let after = self.host.peer.ask("")?;
        let value: Value = serde_json::from_str(&text)?;
        let grown =
            |name: &str| Ok::<_, anyhow::Error>(number(&after, name)? - number(&before, name)?);
        Ok(Round {
            connected: number(&value, "connected_seconds")?,
            joined: number(&value, "joined_seconds")?,
            operations: grown("requests")?,
            bytes: grown("received")? + grown("sent")?,
        })
    }
}

fn theirs(python: &Path, agents: u32) -> anyhow::Result<Round> {
    // A process for each round: agents that were given up would go on.
    let text = output(Command::new(python).args(["-c", PEER, &agents.to_string()]))?;
    let value: Value = serde_json::from_str(&text)?;
    let missing = number(&value, "missing")?;
    if missing > 0.0 {
        println!("    {missing} of PyTorch's {agents} agents held no rank when they were given up");
    }
    Ok(Round {
        connected: 0.0,
        joined: number(&value, "seconds")?,
        operations: number(&value, "requests")?,
        bytes: number(&value, "bytes")?,
    })
}

fn number(value: &Value, name: &str) -> anyhow::Result<f64> {
    let number = value[name].as_f64();
    number.with_context(|| format!("'{name}' is missing in {value}"))
}
