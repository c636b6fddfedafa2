//! The `rdzv` program: `rdzv run` and its other commands, and `torchrun` when a link of that name
//! calls it.
//!
//! ```text
//! argv, PET_* ─ args ─► RunArgs ─ resolve ─► LaunchPlan ─ rdzv-agent ─► Outcome ─ report ─► exit code
//!                                                             │
//!                                                             └─ events ─► observe
//! ```

mod args;
mod commands;
mod demo;
mod exit;
mod explain;
mod observe;
mod report;
mod resolve;
mod signal;
mod terminal;

use std::process::ExitCode;

use rdzv_agent::host;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_else(|| "rdzv".into());
    commands::dispatch(&called, words.collect())
}
