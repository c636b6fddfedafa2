//! `cargo xtask bench agent`: costs of the agent, recovery, and output speed.
//!
//! | quantity | event | from | to |
//! |---|---|---|---|
//! | recovery of two nodes | one of four workers is killed | the kill | all new workers run |
//! | idle processor time | eight workers do nothing | start of a pause | end of the pause |
//! | idle memory | the same | | end of the pause |
//! | console | eight workers write long logs | the first byte written | the last byte read |
//!
//! The recovery has two launchers on loopback that meet by c10d, with two workers each. The last
//! instant is the first instruction of the last new worker. The idle figures are those of all
//! processes of the launcher, while the output of the workers is labelled. Memory is their
//! proportional set size. The console writes labelled lines into a pipe that is read as fast as
//! possible. Every line on the console is checked: its label, its number and its text.

mod idle;
mod recovery;

use anyhow::ensure;

use super::flood::Flood;
use super::launcher::Launcher;
use super::table::{self, Better, Comparison, median};
use crate::install;

/// Number of workers that are idle, and of workers that flood.
const WORKERS: u32 = 8;

/// Lines of each worker.
const FLOOD_LINES: usize = 200_000;

/// Maximum processor use of an idle agent, in per cent.
const IDLE_PER_CENT: f64 = 0.1;

/// Maximum memory of an agent with eight idle workers, in MiB.
const IDLE_MEBIBYTES: f64 = 15.0;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let python = install::python()?;
    let [ours, theirs] = Launcher::both(&python)?;
    let flood = Flood::prepare(WORKERS, FLOOD_LINES)?;

    let mut recovery = Comparison::new("recovery of two nodes", "ms", Better::Less, 10.0);
    let mut processor = Comparison::new("idle processor time", "% of one", Better::Less, 1.0);
    let mut memory = Comparison::new("idle memory", "MiB", Better::Less, 1.0);
    let mut console = Comparison::new("console", "MB/s", Better::More, 5.0);
    let mut torn = [0, 0];
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (launcher, is_ours) in [(&ours, true), (&theirs, false)] {
            for milliseconds in recovery::measure(launcher)? {
                recovery.add(is_ours, milliseconds);
            }
            let idle = idle::measure(launcher)?;
            processor.add(is_ours, idle.per_cent);
            memory.add(is_ours, idle.mebibytes);
            let poured = flood.pour(launcher)?;
            console.add(is_ours, poured.megabytes_per_second);
            torn[usize::from(!is_ours)] += poured.torn;
        }
    }
    let idle = (median(&processor.ours), median(&memory.ours));
    let all = [recovery, processor, memory, console];
    let met = table::print(&format!("bench agent, {runs} runs"), "torchrun", &all);
    println!(
        "\nlines torn or lost: {} of rdzv's, {} of torchrun's, of {} each",
        torn[0],
        torn[1],
        flood.lines * runs
    );
    println!(
        "idle with {WORKERS} workers: {:.3} % of a processor ({IDLE_PER_CENT} % are allowed), \
         {:.1} MiB ({IDLE_MEBIBYTES} MiB are allowed)",
        idle.0, idle.1
    );
    ensure!(
        met && torn[0] == 0 && idle.0 < IDLE_PER_CENT && idle.1 < IDLE_MEBIBYTES,
        "a target was missed"
    );
    Ok(())
}
