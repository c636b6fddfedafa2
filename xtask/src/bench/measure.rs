//! The parent that measures: runs one command and reports its wall time and peak memory.
//!
//! It is a process of its own for each run, because what the kernel keeps about finished children
//! is the largest of all of them. Its own resident size, some 2 MB, is the least it can report: the
//! kernel counts what a child was before it executed its program.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use super::this_program;
use crate::command::output;

pub(super) const NAME: &str = "measure-one";

/// What one run of a command took.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Usage {
    pub(super) wall_seconds: f64,
    /// Resident size of the largest process among the command and all it waited for.
    pub(super) peak_megabytes: f64,
}

/// Runs a command under a fresh measuring parent.
pub(super) fn measure(measured: &Command) -> anyhow::Result<Usage> {
    let mut command = Command::new(this_program()?);
    command.args(["bench", NAME]).arg(measured.get_program());
    let text = output(command.args(measured.get_args()))?;
    serde_json::from_str(&text)
        .with_context(|| format!("failed to read the measurement '{}'", text.trim()))
}

/// The measuring parent itself.
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
