//! `cargo xtask bench rpc`: calls between workers, beside `torch.distributed.rpc`.
//!
//! Every worker is a process with the environment that an agent gives it, and a store of its own
//! group to meet at. In each run a group of two is measured in all ways, and a group of four in how
//! long it takes to come up and to go; each side in its turn. Both are measured twice: with what
//! they choose on one host (shared memory, reading one another's memory), and through TCP alone,
//! which PyTorch calls `uv` and `basic`. Tensors that lie in an arena and are lent are measured for
//! the only side that has any.

mod figures;
mod group;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::Server;
use super::{release_binary, table, test_program};
use crate::install;
use figures::{Figures, LENT, comparisons};
use group::Group;

/// Most of a core that rdzv may use while nothing is called, in per cent.
const IDLE_PER_CENT: f64 = 1.0;

const PEER: &str = include_str!("../rpc_peer.py");

/// Does the same as the peer, with ours.
type Program = Box<dyn Fn() -> Command>;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let store = release_binary()?;
    let worker = test_program("rpc_bench")?;
    let python = install::python()?;
    let mut sides = [
        ("rdzv", ours(&worker, "default"), Vec::new()),
        ("PyTorch", peer(&python, "default"), Vec::new()),
        ("rdzv, TCP", ours(&worker, "tcp"), Vec::new()),
        ("PyTorch, TCP", peer(&python, "uv_basic"), Vec::new()),
    ];
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (name, program, figures) in &mut sides {
            let measured = measure(program, &store, *name == "rdzv")
                .with_context(|| format!("{name} failed in run {run}"))?;
            figures.push(measured);
        }
    }
    let [ours, theirs, ours_tcp, theirs_tcp] = sides.map(|(_, _, figures)| figures);
    let compared = comparisons([&ours, &theirs], true)?;
    let over_tcp = comparisons([&ours_tcp, &theirs_tcp], false)?;
    let met = table::print(&format!("bench rpc, {runs} runs"), "PyTorch", &compared);
    table::print("through TCP alone", "PyTorch", &over_tcp);
    println!();
    for (key, size) in LENT {
        let times: Vec<f64> = ours.iter().map(|run| run.0[key] * 1e6).collect();
        let times = table::spread(&times);
        println!("rdzv alone, {size} lent from an arena, one call, us: {times}");
    }
    let idle = compared.iter().find(|quantity| quantity.name == "idle");
    let rests = idle.is_some_and(|idle| table::median(&idle.ours) < IDLE_PER_CENT);
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

/// All that is measured once of one side, which may have arenas.
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

    // By workers of their own: to free a large arena takes the system some time, in which others
    // neither idle nor shut down.
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
    Ok(figures)
}

/// The largest that a worker answered.
fn slowest(answers: &[Value], name: &str) -> anyhow::Result<f64> {
    let numbers = answers.iter().map(|answer| answer[name].as_f64());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.with_context(|| format!("'{name}' is missing in {answers:?}"))?;
    Ok(numbers.into_iter().fold(f64::NEG_INFINITY, f64::max))
}
