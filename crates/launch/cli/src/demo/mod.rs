//! `rdzv demo`: an elastic training run.
//!
//! Without `--no-kill`, one worker is killed.
//!
//! ```text
//!   rdzv demo (keeper)
//!   └─ rdzv demo (agent) ── events ──────────────► timeline ─► terminal
//!      └─ rdzv demo-worker, several ── reports ──►    └─ SIGKILL to one of them
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `demo_run` | the plan for the agent, and the terminal |
//! | `demo_worker` | one worker: an ordinary elastic training loop |
//! | `network` | the model, its data and its optimizer |
//! | `checkpoint` | the file that survives the kill |
//! | `progress` | the reports of workers |
//! | `timeline` | the state of the demo, its output lines, and its verdict |

mod checkpoint;
mod demo_run;
mod demo_worker;
mod network;
mod progress;
mod timeline;

pub(crate) use self::demo_run::{DemoArgs, run};
pub(crate) use self::demo_worker::{DemoWorkerArgs, work};
