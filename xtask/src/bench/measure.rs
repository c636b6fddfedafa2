//! Parent process that measures wall time and peak memory of one command.
//!
//! It is a separate process for each run, because the kernel reports the maximum of all finished
//! children. The minimum that it can report is its own resident size, some 2 MB. The kernel counts
//! the size of a child before it executed its program.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use super::this_program;
use crate::command::output;

pub(super) const NAME: &str = "measure-one";

/// Resources of one run of a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) wall_seconds: f64,
    /// Resident size of the largest process among the command and its children.
    pub(super) peak_megabytes: f64,
}

/// Runs a command under a new measuring parent.
pub(super) fn measure(measured: &Command) -> anyhow::Result<Usage> {
    let mut command = Command::new(this_program()?);
    command.args(["bench", NAME]).arg(measured.get_program());
    let text = output(command.args(measured.get_args()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("failed to read the measurement '{}'", text.trim()))
}

/// Runs this program as the measuring parent.
pub(super) fn run(words: &[String]) -> anyhow::Result<()> {
    let (program, arguments) = words.split_first().context("no command to measure")?;
    let start = Instant::now();
    let status = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("failed to start {program}"))?;
    let wall = start.elapsed();
    ensure!(status.success(), "{program} failed ({status})");
    let kilobytes = getrusage(UsageWho::RUSAGE_CHILDREN)?.max_rss();
    let usage = Usage {
        wall_seconds: wall.as_secs_f64(),
        peak_megabytes: kilobytes as f64 / 1024.0,
    };
    println!("{}", serde_json::to_string(&usage)?);
    Ok(())
}
