//! `cargo xtask bench launch`: costs of starts, of replacements and of output.
//!
//! | quantity | from | to |
//! |---|---|---|
//! | start | the launcher is started with two `/bin/true` | it has ended |
//! | memory | the same runs | largest resident size of any process of the launcher |
//! | replacement | last instruction of one of two workers | first instruction of its replacement |
//! | tee | a worker begins to write to its labelled stdout | the console has the last byte |

use anyhow::ensure;

use super::flood::Flood;
use super::launcher::Launcher;
use super::measure::measure;
use super::table::{self, Better, Comparison};
use super::worker;
use crate::install;

/// Number of lines, 60 MB: both sides are busy for a noticeable time.
const FLOOD_LINES: usize = 600_000;

pub(super) fn run(runs: usize) -> anyhow::Result<()> {
    let python = install::python()?;
    let [ours, theirs] = Launcher::both(&python)?;
    let flood = Flood::prepare(1, FLOOD_LINES)?;

    let mut wall = Comparison::new("start of two workers", "ms", Better::Less, 50.0);
    let mut memory = Comparison::new("peak memory", "MB", Better::Less, 25.0);
    let mut replacement = Comparison::new("death to replacement", "ms", Better::Less, 5.0);
    let mut tee = Comparison::new("tee", "MB/s", Better::More, 5.0);
    for run in 1..=runs {
        println!("    run {run} of {runs}");
        for (launcher, is_ours) in [(&ours, true), (&theirs, false)] {
            let side = |comparison: &mut Comparison, value| comparison.add(is_ours, value);
            let usage = measure(launcher.launch(&["--nproc-per-node", "2"]).arg("/bin/true"))?;
            side(&mut wall, usage.wall_seconds * 1e3);
            side(&mut memory, usage.peak_megabytes);
            side(&mut replacement, replace(launcher)?);
            let poured = flood.pour(launcher)?;
            ensure!(poured.torn == 0, "{} lines were torn or lost", poured.torn);
            side(&mut tee, poured.megabytes_per_second);
        }
    }
    let met = table::print(
        &format!("bench launch, {runs} runs"),
        "torchrun",
        &[wall, memory, replacement, tee],
    );
    ensure!(met, "a target was missed");
    Ok(())
}

/// Returns the milliseconds from the death of a worker to the next attempt.
fn replace(launcher: &Launcher) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    let flags = ["--nproc-per-node", "2", "--max-restarts", "1"];
    let status = launcher.play(&flags, "die-once")?.arg(&notes).status()?;
    ensure!(
        status.success(),
        "a dead worker was not replaced ({status})"
    );
    let nanoseconds = worker::noted(&notes, "replaced")? - worker::noted(&notes, "died")?;
    Ok(nanoseconds as f64 / 1e6)
}
