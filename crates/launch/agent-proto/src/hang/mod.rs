//! Workers that hang: three ways to notice it, and the stacks that show where they are.
//!
//! ```text
//!   messages of the worker                                  observations from outside
//!   ──────────────────────                                  ─────────────────────────
//!   "kill me at 12:00:05"     "step", "checkpoint", …        CPU time, output, input
//!        │ timers                  │ heartbeat                    │ progress
//!        ▼                         ▼                              ▼
//!   the timer has expired     the phase's limit is over     no worker of the group did anything
//!        └─────────────────────────┴──────────────┬───────────────┘
//!                                                 ▼ stacks
//!                    where each worker is, and which one is not where the others are
//! ```
//!
//! * [`timers`] is PyTorch's file-based watchdog: the same lines on the pipe, and the same choice
//!   of the expired timer.
//! * [`heartbeat`] is ours: beats that any language can send, with a limit per phase.
//! * [`progress`] is ours: it needs no cooperation of the worker.
//! * [`uninterruptible`] notices workers that stay in state D.
//! * [`stacks`] compares the stacks of workers.
//! * [`line_splitter`] cuts the bytes of a pipe into lines, whatever the other side sends.
//!
//! All times are monotonic ones of the driver. Its clock is suspended while the workers are stopped
//! (Ctrl-Z), so that this time is not counted as silence.

pub mod heartbeat;
pub mod line_splitter;
pub mod progress;
pub mod stacks;
pub mod timers;
pub mod uninterruptible;
