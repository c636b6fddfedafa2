//! `cargo xtask bench launch`: what it costs to start workers, to replace a dead one and to label
//! the output of a chatty one.
//!
//! | quantity | from | to |
//! |---|---|---|
//! | start | the launcher is started with two `/bin/true` | it has ended |
//! | memory | the same runs | largest resident size of any of its processes |
//! | replacement | the last instruction of a dying worker, of two | the first of its replacement |
//! | tee | a worker begins to write to its labelled stdout | the console has the last byte |

use std::io::Read;
use std::process::Stdio;

use anyhow::{Context, ensure};

use super::launcher::{Launcher, Running, labelled};
use super::measure::measure;
use super::table::{self, Better, Comparison};
use super::{arguments, worker};
use crate::install;

const DEFAULT_RUNS: usize = 7;

/// Enough for both sides to be busy for a noticeable time: 60 MB.
const FLOOD_LINES: usize = 600_000;

pub(super) fn run(arguments: &[String]) -> anyhow::Result<()> {
    let runs = arguments::runs("launch", arguments, DEFAULT_RUNS)?;
    let python = install::python()?;
    let [ours, theirs] = Launcher::both(&python)?;

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
            side(&mut tee, labelled_output(launcher)?);
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

/// What either launcher puts before each line by default.
const LABEL: &str = "[default0]:";

/// Milliseconds from the death of a worker to the start of the next attempt.
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

/// Megabytes of worker output per second that reach the console with a label.
fn labelled_output(launcher: &Launcher) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    let mut command = launcher.play(&labelled(1, folder.path()), "flood")?;
    command.arg(&notes).arg(FLOOD_LINES.to_string());
    let mut launch = Running::start(command.stdout(Stdio::piped()))?;
    let (bytes, last_byte) = drain(launch.0.stdout.take().expect("it is piped"))?;
    let status = launch.0.wait()?;
    ensure!(status.success(), "the flood ended with {status}");
    let expected = FLOOD_LINES * (LABEL.len() + worker::LINE);
    ensure!(
        bytes == expected,
        "{bytes} bytes of {expected} reached the console"
    );
    let nanoseconds = last_byte - worker::noted(&notes, "began")?;
    Ok((FLOOD_LINES * worker::LINE) as f64 * 1e3 / nanoseconds as f64)
}

/// Reads to the end: the number of bytes, and when the last one came, in nanoseconds since the
/// epoch. It does no more than that, because it shares the processor with what is measured.
fn drain(mut console: impl Read) -> anyhow::Result<(usize, u128)> {
    let mut buffer = vec![0; 1 << 18];
    let mut bytes = 0;
    let mut last_byte = 0;
    loop {
        let length = console
            .read(&mut buffer)
            .context("failed to read the console")?;
        if length == 0 {
            return Ok((bytes, last_byte));
        }
        bytes += length;
        last_byte = worker::now();
    }
}
