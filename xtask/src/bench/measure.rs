//! Process that runs one command and reports its wall time and peak memory.
//!
//! Each run has a new measuring process, because the kernel keeps only the maximum over all
//! finished children. The smallest possible result is the resident size of the measuring process,
//! about 2 MB: the kernel also counts the child before it executes its program.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use super::this_program;
use crate::command::output;

pub(super) const NAME: &str = "measure-one";

/// Cost of one run of a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) wall_seconds: f64,
    /// Resident size of the largest process: the command or an awaited child.
    pub(super) peak_megabytes: f64,
}

/// Runs a command as the child of a new measuring process.
pub(super) fn measure(measured: &Command) -> anyhow::Result<Usage> {
    let mut command = Command::new(this_program()?);
    command.args(["bench", NAME]).arg(measured.get_program());
    let text = output(command.args(measured.get_args()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("failed to read the measurement '{}'", text.trim()))
}

/// Runs as the measuring process.
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
