//! `cargo xtask bench rpc`: calls between workers, against PyTorch's RPC.
//!
//! Every worker is a process with the environment from an agent, and a separate store for its
//! group. In each run a group of two is measured in all ways. A group of four is measured for its
//! start and its end. The sides alternate. Both are measured twice. First they choose their
//! transport on one host (shared memory, or reading each other's memory). Then they use only TCP,
//! which PyTorch calls `uv` and `basic`. Tensors that are lent from an arena are measured only for
//! the side that has arenas.

mod figures;
mod group;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::Server;
use super::{release_binary, table, test_program};
use crate::install;
use figures::{Figures, Side};
use group::Group;

/// Side that has arenas.
const LENDER: &str = "rdzv";

const PEER: &str = include_str!("../rpc_peer.py");

/// Program that does the same as the peer, with our side.
type Program = Box<dyn Fn() -> Command>;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let store = release_binary()?;
    let worker = test_program("rpc_bench")?;
    let python = install::python()?;
    let mut sides = [
        (ours(&worker, "default"), Side::new(LENDER)),
        (peer(&python, "default"), Side::new("PyTorch")),
        (ours(&worker, "tcp"), Side::new("rdzv, TCP")),
        (peer(&python, "uv_basic"), Side::new("PyTorch, TCP")),
    ];
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (program, side) in &mut sides {
            let lends = side.name == LENDER;
            let figures = measure(program, &store, lends)
                .with_context(|| format!("{} failed in run {run}", side.name))?;
            side.runs.push(figures);
        }
    }
    let sides = sides.map(|(_, side)| side);
    figures::print(&format!("bench rpc, {runs} runs"), &sides);
    let [ours, theirs, ..] = &sides;
    let compared = figures::comparisons(ours, theirs);
    let met = table::print("asked for", theirs.name, &compared);
    let rests = figures::rests(ours);
    println!(
        "\nasked for: less than 1 % of a core while idle: {}",
        if rests { "yes" } else { "NO" }
    );
    ensure!(met && rests, "a target was missed");
    Ok(())
}

fn ours(worker: &Path, configuration: &'static str) -> Program {
    let worker = worker.to_owned();
    Box::new(move || {
        let mut command = Command::new(&worker);
        command.arg(configuration);
        command
    })
}

fn peer(python: &Path, configuration: &'static str) -> Program {
    let python = python.to_owned();
    Box::new(move || {
        let mut command = Command::new(&python);
        command.args(["-c", PEER, configuration]);
        command
    })
}

/// Performs all measurements of one side, which may have arenas.
fn measure(program: &Program, store: &Path, lends: bool) -> anyhow::Result<Figures> {
    let start = |world_size| {
        let server = Server::start(Command::new(store).args(["store", "--port", "0"]))?;
        Group::start(program, server, world_size)
    };
    let mut figures = Figures::default();

    let mut pair = start(2)?;
    figures.add("init_2", slowest(&pair.tell_all("init")?, "seconds")?);
    figures.add_all(&pair.tell_first("calls")?);
    figures.add("cores", slowest(&pair.tell_all("idle")?, "cores")?);
    figures.add(
        "shutdown_2",
        slowest(&pair.tell_all("shutdown")?, "seconds")?,
    );
    pair.end()?;

    // Other workers do this, because the system takes some time to free a large arena. During this
    // time workers neither idle nor shut down.
    if lends {
        let mut lenders = start(2)?;
        lenders.tell_all("init")?;
        figures.add_all(&lenders.tell_first("lent")?);
        lenders.tell_all("shutdown")?;
        lenders.end()?;
    }

    let mut four = start(4)?;
    figures.add("init_4", slowest(&four.tell_all("init")?, "seconds")?);
    figures.add(
        "shutdown_4",
        slowest(&four.tell_all("shutdown")?, "seconds")?,
    );
    four.end()?;
    figures.complete()
}

/// Returns the largest answer of the workers.
fn slowest(answers: &[Value], name: &str) -> anyhow::Result<f64> {
    let numbers = answers.iter().map(|answer| answer[name].as_f64());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.with_context(|| format!("'{name}' is missing in {answers:?}"))?;
    Ok(numbers.into_iter().fold(f64::NEG_INFINITY, f64::max))
}
