//! `cargo xtask bench rpc`: calls between workers, beside PyTorch's RPC.
//!
//! Every worker is a process with the environment variables that an agent sets, and each group has
//! its own store. Each run measures all quantities with a group of two workers, and start and
//! shutdown also with a group of four. The sides take turns, each in two configurations. The first
//! uses the transports that the side chooses on one host: shared memory and reads from the peer's
//! memory. The second uses TCP alone, which PyTorch calls `uv` and `basic`. Tensors lent from an
//! arena are measured for rdzv alone, because PyTorch has no arenas.

mod figures;
mod group;

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::Server;
use super::{release_binary, table, test_program};
use crate::install;
use figures::{FROM_ARENA, Figures, comparisons};
use group::Group;

/// Maximum processor time of rdzv without calls, in per cent of one core.
const IDLE_PER_CENT: f64 = 1.0;

const PEER: &str = include_str!("../rpc_peer.py");

/// Creates the command that starts a worker of one side.
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
    for (key, size) in FROM_ARENA {
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

/// Measures one side once. `lends` adds the tensors lent from an arena.
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

    // A separate group, because the system needs some time to free a large arena. This time would
    // distort the idle and shutdown figures of the first group.
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

/// Returns the largest value of `name` among the answers.
fn slowest(answers: &[Value], name: &str) -> anyhow::Result<f64> {
    let numbers = answers.iter().map(|answer| answer[name].as_f64());
    let numbers: Option<Vec<f64>> = numbers.collect();
    let numbers = numbers.with_context(|| format!("'{name}' is missing in {answers:?}"))?;
    Ok(numbers.into_iter().fold(f64::NEG_INFINITY, f64::max))
}
