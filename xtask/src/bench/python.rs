//! `cargo xtask bench python`: the stores of the Python package beside PyTorch's client, on one server; calls between
//! workers beside PyTorch's RPC; agents of torchrun that meet; and the time that the package and its launcher take to be
//! there.
//!
//! | quantity | each time |
//! |---|---|
//! | calls | median time of one call from Python, alone |
//! | 64 threads | gets per second, a connection for each thread |
//! | empty call | median time of `rpc_sync` of a function that does nothing: `rdzv.rpc`, and `torch.distributed.rpc` over rdzv |
//! | tensors, arrays | 64 MiB to a callee that drops them |
//! | busy callee | 99th percentile of empty calls while the callee's main thread computes in Python |
//! | 32 agents | time until 32 agents of stock torchrun have met, without their start |
//! | import | `import rdzv`, beside an interpreter that imports nothing |
//! | version | `rdzv --version`, beside the interpreter that imports nothing |

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, ensure};

use super::peer::{Peer, Server};
use super::table::{self, Better, Comparison, median};
use super::{arguments, release_binary};
use crate::command::output;
use crate::{python, wheel};

const DEFAULT_RUNS: usize = 5;
const CLIENT: &str = include_str!("python_client.py");
const CALLER: &str = include_str!("python_calls.py");
const AGENTS: &str = include_str!("python_agents.py");
const CALLS: [&str; 5] = ["get", "set", "add", "check", "set and add"];

/// Least advantage of 64 threads.
const THREADS: f64 = 1.5;

/// Agents that meet.
const NODES: u32 = 32;

/// The rows of calls: name, unit, better, least advantage, and the figure with the side of ours.
const REMOTE: [(&str, &str, Better, f64, &str, &str); 7] = [
    ("empty call", "us", Better::Less, 5.0, "empty", "registered"),
    (
        "empty call, torch.distributed.rpc",
        "us",
        Better::Less,
        3.0,
        "empty",
        "bridge",
    ),
    (
        "64 MiB tensor",
        "MiB/s",
        Better::More,
        3.0,
        "tensor",
        "registered",
    ),
    (
        "64 MiB tensor, torch.distributed.rpc",
        "MiB/s",
        Better::More,
        3.0,
        "tensor",
        "bridge",
    ),
    (
        "64 MiB array",
        "MiB/s",
        Better::More,
        5.0,
        "array",
        "registered",
    ),
    (
        "busy callee, p99",
        "ms",
        Better::Less,
        1.0,
        "busy",
        "registered",
    ),
    (
        "busy callee, p99, torch.distributed.rpc",
        "ms",
        Better::Less,
        1.0,
        "busy",
        "bridge",
    ),
];

/// Starts of each program in one run.
const STARTS: usize = 20;

pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("python", arguments, DEFAULT_RUNS)?;
    let python = python::environment(&wheel::release()?)?;
    let launcher = release_binary()?;
    let server = Server::start(Command::new(&launcher).args(["store", "--port", "0"]))?;
    let mut client = Peer::start(Command::new(&python).args(["-c", CLIENT]))?;

    let mut caller = Peer::start(Command::new(&python).args(["-c", CALLER]))?;
    let mut nodes = Peer::start(Command::new(&python).args(["-c", AGENTS]))?;

    let mut remote =
        REMOTE.map(|(name, unit, better, target, ..)| Comparison::new(name, unit, better, target));
    let mut agents = Comparison::new("32 agents", "ms", Better::Less, 10.0);
    let mut calls = CALLS.map(|call| Comparison::new(call, "us", Better::Less, 1.0));
    let mut threads = Comparison::new("64 threads", "1000/s", Better::More, THREADS);
    let (mut bare, mut import, mut version) = (Vec::new(), Vec::new(), Vec::new());
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        let figures = client.ask(&server.port.to_string())?;
        let pair = |name: &str| -> anyhow::Result<(f64, f64)> {
            let both = &figures[name];
            let figure = |side: usize| both[side].as_f64();
            let found = figure(0).zip(figure(1));
            found.with_context(|| format!("the client left {name} out"))
        };
        for (comparison, call) in calls.iter_mut().zip(CALLS) {
            let (ours, theirs) = pair(call)?;
            comparison.add(true, ours);
            comparison.add(false, theirs);
        }
        let (ours, theirs) = pair("threads")?;
        threads.add(true, ours);
        threads.add(false, theirs);
        let figures = caller.ask("once")?;
        for (comparison, (.., figure, side)) in remote.iter_mut().zip(REMOTE) {
            let of = |kind: &str| figures[kind][figure].as_f64();
            let found = of(side).zip(of("torch"));
            let (ours, theirs) = found.with_context(|| format!("the caller left {figure} out"))?;
            comparison.add(true, ours);
            comparison.add(false, theirs);
        }
        let figures = nodes.ask(&NODES.to_string())?;
        let found = figures[0].as_f64().zip(figures[1].as_f64());
        let (ours, theirs) = found.context("the agents left their times out")?;
        agents.add(true, ours);
        agents.add(false, theirs);
        for _ in 0..STARTS {
            bare.push(milliseconds(&python, &["-I", "-c", "pass"])?);
            import.push(milliseconds(&python, &["-I", "-c", "import rdzv"])?);
            version.push(milliseconds(&launcher, &["--version"])?);
        }
    }

    let mut all = calls.to_vec();
    all.push(threads);
    all.extend(remote);
    all.push(agents);
    let met = table::print(&format!("bench python, {runs} runs"), "PyTorch", &all);
    let (bare, import) = (median(&bare), median(&import));
    println!(
        "\nimport rdzv: {import:.1} ms, {:.1} ms above an interpreter that imports nothing ({bare:.1} ms)",
        import - bare
    );
    println!("rdzv --version: {:.1} ms", median(&version));
    ensure!(met, "a target was missed");
    Ok(())
}

fn milliseconds(program: &Path, words: &[&str]) -> anyhow::Result<f64> {
    let start = Instant::now();
    output(Command::new(program).args(words))?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}
