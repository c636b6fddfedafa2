//! `rdzv demo`: an elastic training run with a failure in the middle, in one command.
//!
//! ```text
//!   rdzv demo (keeper)
//!   └─ rdzv demo (agent) ── events ──────────────► timeline ─► terminal
//!      └─ rdzv demo-worker, several ── reports ──►    └─ SIGKILL to one of them
//! ```
//!
//! | file | holds |
//! |---|---|
//! | [`args`] | the flags |
//! | `launch` | the demo itself: the plan for the agent, and who tells the timeline |
//! | `worker` | one worker: an elastic training loop as a user would write it |
//! | `network` | the model, its data and its optimizer |
//! | `checkpoint` | the file that survives |
//! | `progress` | how workers report |
//! | `timeline` | what is made of events and reports, and whether it was as it should be |
//! | `words` | how it is put |

mod args;
mod checkpoint;
mod launch;
mod network;
mod progress;
mod timeline;
mod words;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

pub(crate) use self::args::{DemoArgs, DemoWorkerArgs};
use crate::exit::Exit;
use crate::terminal::complain;

const SEED: u64 = 2;
/// How many points there are, for all ranks together.
const POINTS: usize = 512;
const STEPS: u32 = 120;
const CHECKPOINT_EVERY: u32 = 10;
/// The step that is reported last before the kill: some steps after a checkpoint.
const KILL_AT: u32 = 47;
/// A step takes at least this long, so that people can follow.
const PACE: Duration = Duration::from_millis(15);

/// `rdzv demo`.
pub(crate) fn run(args: &DemoArgs) -> ExitCode {
    launch::run(args)
}

/// `rdzv demo-worker`, which the demo starts and nobody types.
pub(crate) fn work(args: &DemoWorkerArgs) -> ExitCode {
    match worker::train(args) {
        Ok(()) => Exit::Success.into(),
        Err(error) => {
            complain(&format!("rdzv demo-worker: {error:#}"));
            Exit::Failure.into()
        }
    }
}
