//! `cargo xtask bench collective`: process groups of rdzv and gloo on loopback.
//!
//! It measures `all_reduce`, and a message to another rank and back. Every rank is a process. The
//! ranks of both sides find each other through the same `rdzv store`. Each run has a new group for
//! each world size and side. The figure of a run is the median time of one `all_reduce`, or of one
//! message and its return, at rank 0.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::Value;

use super::peer::{Peer, Server};
use super::table::{self, Better, Comparison};
use super::{release_binary, test_program};
use crate::install;

const PEER: &str = include_str!("collective_peer.py");

/// World size, key of the figure in the output, and name in the table.
const CASES: [(u32, &str, &str); 9] = [
    (2, "4", "2 ranks, 4 B"),
    (2, "65536", "2 ranks, 64 KiB"),
    (2, "16777216", "2 ranks, 16 MiB"),
    (4, "4", "4 ranks, 4 B"),
    (4, "65536", "4 ranks, 64 KiB"),
    (4, "16777216", "4 ranks, 16 MiB"),
    (2, "message 4", "message, 4 B"),
    (2, "message 65536", "message, 64 KiB"),
    (2, "message 16777216", "message, 16 MiB"),
];

/// Minimum advantage at two of the three sizes, for each world size.
const FASTER: f64 = 1.5;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let python = install::python()?;
    let rank = test_program("collective_worker")?;
    let store = Server::start(Command::new(release_binary()?).args(["store", "--port", "0"]))?;
    let address = store.address();
    let mut cases = CASES.map(|(_, _, name)| Comparison::new(name, "us", Better::Less, 1.0));
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for world_size in [2, 4] {
            for is_ours in [true, false] {
                let name = format!("{run} {world_size} {is_ours}");
                let command = || {
                    if is_ours {
                        Command::new(&rank)
                    } else {
                        python_rank(&python)
                    }
                };
                let figures = group(command, &address, world_size, &name)?;
                for (case, (of, figure, _)) in cases.iter_mut().zip(CASES) {
                    if of == world_size {
                        let seconds = figures[figure].as_f64().context("a figure is missing")?;
                        case.add(is_ours, seconds * 1e6);
                    }
                }
            }
        }
    }
    let title = format!("bench collective, all_reduce and messages of f32, {runs} runs");
    let mut met = table::print(&title, "gloo", &cases);
    // Messages only must not be slower, so this loop checks the reductions alone.
    for of_world in cases[..6].chunks(3) {
        let faster = of_world.iter().filter(|case| case.advantage() >= FASTER);
        met &= faster.count() >= 2;
    }
    println!("\ntarget: never slower, and {FASTER} times faster at two of three sizes");
    ensure!(met, "a target was missed");
    Ok(())
}

fn python_rank(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-c", PEER]);
    command
}

/// Runs all ranks of one group, and returns the figures of rank 0.
fn group(
    command: impl Fn() -> Command,
    store: &str,
    world_size: u32,
    name: &str,
) -> anyhow::Result<Value> {
    let ranks = (0..world_size).map(|rank| {
        let words = [store, &rank.to_string(), &world_size.to_string(), name];
        Peer::start(command().args(words))
    });
    let mut ranks = ranks.collect::<anyhow::Result<Vec<Peer>>>()?;
    let figures = ranks[0].answer().context("rank 0 printed no figures")?;
    for (rank, peer) in ranks.into_iter().enumerate() {
        let status = peer.end()?;
        ensure!(status.success(), "rank {rank} failed ({status})");
    }
    Ok(figures)
}
