//! `cargo xtask bench rendezvous`: time until all agents hold their ranks.
//!
//! On both sides, one process contains all agents, each with its own connection over loopback.
//! PyTorch's agents are threads, and so are those of rdzv up to 128. From 1,000 agents, the
//! benchmark measures rdzv alone, as state machines that share one thread. PyTorch's server is in
//! the process of its agents, the server of rdzv is a separate process. The benchmark stops waiting
//! for PyTorch's agents after a minute, and prints how many had no rank. The figure is then a lower
//! bound. The agents connect before the clock starts, except where the table shows both times.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::Server;
use super::table::{self, Better, Comparison, median};
use super::test_program;
use crate::command::output;
use crate::install;

const PEER: &str = include_str!("rendezvous_peer.py");

/// Numbers of agents in the measurements of both sides.
const BESIDE: [(u32, &str); 4] = [
    (8, "8 agents"),
    (32, "32 agents"),
    (64, "64 agents"),
    (128, "128 agents"),
];

/// Numbers of agents in the measurements of rdzv alone.
const ALONE: [u32; 2] = [1_000, 10_000];

/// Factor by which rdzv must be faster with 64 agents.
const FASTER: f64 = 20.0;

/// Maximum seconds until 10,000 agents are connected and hold their ranks.
const SECONDS: f64 = 10.0;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let python = install::python()?;
    let crowd = test_program("crowd")?;
    let host = Server::start(Command::new(&crowd).arg("serve"))?;
    let ours = |how: &str, agents: u32| -> anyhow::Result<(f64, f64)> {
        let words = [how, &host.address(), &agents.to_string()];
        let text = output(Command::new(&crowd).args(words))?;
        let value: Value = serde_json::from_str(&text)?;
        let connected = number(&value, "connected_seconds")?;
        Ok((connected, number(&value, "joined_seconds")?))
    };

    let mut times = BESIDE.map(|(agents, name)| {
        let target = if agents == 64 { FASTER } else { 1.0 };
        Comparison::new(name, "ms", Better::Less, target)
    });
    let mut alone = ALONE.map(|_| (Vec::new(), Vec::new()));
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (time, (agents, _)) in times.iter_mut().zip(BESIDE) {
            let (_, joined) = ours("threads", agents)?;
            time.add(true, joined * 1e3);
            time.add(false, theirs(&python, agents)? * 1e3);
        }
        for ((connected, joined), agents) in alone.iter_mut().zip(ALONE) {
            let round = ours("many", agents)?;
            connected.push(round.0);
            joined.push(round.1);
        }
    }

    let title = format!("bench rendezvous, {runs} runs");
    let mut met = table::print(&title, "PyTorch", &times);
    println!("\n| rdzv alone | connected, s | ranks held, s |");
    println!("|---|---:|---:|");
    for ((connected, joined), agents) in alone.iter().zip(ALONE) {
        let (connected, joined) = (median(connected), median(joined));
        println!("| {agents} agents | {connected:.3} | {joined:.3} |");
        met &= connected + joined <= SECONDS;
    }
    println!(
        "\ntarget: 64 agents {FASTER} times faster, and 10,000 agents connected and with their \
         ranks within {SECONDS} s"
    );
    ensure!(met, "a target was missed");
    Ok(())
}

/// Returns the seconds until this number of PyTorch's agents hold their ranks.
fn theirs(python: &Path, agents: u32) -> anyhow::Result<f64> {
    // Each round has a new process, because agents without a rank would continue to run.
    let text = output(Command::new(python).args(["-c", PEER, &agents.to_string()]))?;
    let value: Value = serde_json::from_str(&text)?;
    let missing = number(&value, "missing")?;
    if missing > 0.0 {
        println!("    {missing} of PyTorch's {agents} agents held no rank at the time limit");
    }
    number(&value, "seconds")
}

fn number(value: &Value, name: &str) -> anyhow::Result<f64> {
    let number = value[name].as_f64();
    number.with_context(|| format!("'{name}' is missing in {value}"))
}
