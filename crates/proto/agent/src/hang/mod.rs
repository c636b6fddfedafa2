//! Workers that do not get on: three ways to notice, one way to say where they are.
//!
//! ```text
//!   what the worker says                                    what can be seen from outside
//!   ────────────────────                                    ─────────────────────────────
//!   "kill me at 12:00:05"     "step", "checkpoint", …        CPU time, output, input
//!        │ timers                  │ heartbeat                    │ progress
//!        ▼                         ▼                              ▼
//!   the time has come         the phase's limit is over     nobody of the group did anything
//!        └─────────────────────────┴──────────────┬───────────────┘
//!                                                 ▼ place
//!                    where is each worker, and who is not where the others are
//! ```
//!
//! * [`timers`] is the file-based watchdog of the reference: same lines on the pipe, and what an
//!   expired timer means.
//! * [`heartbeat`] is ours: beats that any language can send, with a limit per phase.
//! * [`progress`] is ours: a judgement that needs nothing of the worker.
//! * [`place`] compares where workers are.
//! * [`lines`] cuts what comes through a pipe into lines, whatever the other side sends.
//!
//! All times are monotonic ones that a shell brings. Its clock stands still while the workers are
//! stopped (Ctrl-Z), so that this is nobody's silence.

pub mod heartbeat;
pub mod lines;
pub mod place;
pub mod progress;
pub mod timers;
