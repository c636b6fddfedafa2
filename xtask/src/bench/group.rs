//! `cargo xtask bench group`: `torch.distributed` with the backend rdzv beside gloo, on loopback: `all_reduce`, and a step of
//! DDP with its communication.
//!
//! Both backends are in the same processes and are measured in turns. The figure of a run is the
//! median at rank 0.

use std::process::Command;

use anyhow::{Context, ensure};

use super::collective::group;
use super::peer::Server;
use super::stolen::Processors;
use super::table::{self, Better, Comparison};
use super::{arguments, release_binary};
use crate::{python, wheel};

const DEFAULT_RUNS: usize = 3;

const PEER: &str = include_str!("group_peer.py");

/// World size, name of the figure, name, and the least ratio.
const CASES: [(u32, &str, &str, f64); 8] = [
    (2, "4", "2 ranks, 4 B", 1.0),
    (2, "65536", "2 ranks, 64 KiB", 1.0),
    (2, "16777216", "2 ranks, 16 MiB", 1.0),
    (4, "4", "4 ranks, 4 B", 1.0),
    (4, "65536", "4 ranks, 64 KiB", 1.0),
    (4, "16777216", "4 ranks, 16 MiB", 1.0),
    (2, "step", "DDP, 1 M parameters, a step", 1.0),
    (2, "communication", "DDP, its communication", 3.0),
];

pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("group", words, DEFAULT_RUNS)?;
    let python = python::environment(&wheel::release()?)?;
    let store = Server::start(Command::new(release_binary()?).args(["store", "--port", "0"]))?;
    let address = store.address();
    let mut cases =
        CASES.map(|(_, _, name, least)| Comparison::new(name, "us", Better::Less, least));
    let mut stolen = Vec::new();
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for world_size in [2, 4] {
            let rank = || {
                let mut command = Command::new(&python);
                command.args(["-c", PEER]);
                command
            };
            let before = Processors::now()?;
            let figures = group(rank, &address, world_size, &format!("{run} {world_size}"))?;
            stolen.push(Processors::now()?.stolen_since(before));
            for (case, (of, figure, ..)) in cases.iter_mut().zip(CASES) {
                for (is_ours, backend) in [(true, "rdzv"), (false, "gloo")] {
                    if of == world_size {
                        let seconds = figures[backend][figure].as_f64();
                        case.add(is_ours, seconds.context("a figure is missing")? * 1e6);
                    }
                }
            }
        }
    }
    let title = format!("bench group, torch.distributed on f32, {runs} runs");
    let met = table::print(&title, "gloo", &cases);
    println!(
        "\nprocessor time that the machine's host took meanwhile, %: {}",
        table::spread(&stolen)
    );
    ensure!(met, "a target was missed");
    Ok(())
}
