//! Workers that hang: detection, and stacks that show the location.
//!
//! ```text
//!   messages of the worker                                  observations from outside
//!   ──────────────────────                                  ─────────────────────────
//!   "kill me at 12:00:05"     "step", "checkpoint", …        CPU time, output, input
//!        │ timers                  │ heartbeat                    │ progress
//!        ▼                         ▼                              ▼
//!   the timer has expired     the phase's limit is over     no worker of the group made progress
//!        └─────────────────────────┴──────────────┬───────────────┘
//!                                                 ▼ stacks
//!                    location of each worker, and the workers that differ from the others
//! ```
//!
//! * [`timers`] is PyTorch's file-based watchdog, with the same lines in the pipe and the same
//!   choice of the expired timer.
//! * [`heartbeat`] is rdzv's: a program in any language can send beats. A phase can have a limit.
//! * [`progress`] is rdzv's: it needs no cooperation from the worker.
//! * [`straggler`] compares the steps of workers, and names slow ones.
//! * [`uninterruptible`] detects workers that stay in state D.
//! * [`stacks`] compares the stacks of workers, and [`flight_recorder`] their collective calls.
//! * [`line_splitter`] cuts the bytes of a pipe into lines. It accepts any bytes.
//!
//! All deadlines are monotonic times of the driver. The driver pauses its clock while the workers
//! are stopped (Ctrl-Z) or suspended by a fence, so that this time does not count as silence.

pub mod flight_recorder;
pub mod heartbeat;
pub mod line_splitter;
pub mod progress;
pub mod stacks;
pub mod straggler;
pub mod timers;
pub mod uninterruptible;
