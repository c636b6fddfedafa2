//! Workers that hang: noticed, looked at, reported, and ended where that was asked for.
//!
//! What a hang is, is decided in `rdzv_agent_proto::hang`; here are the pipes that workers write
//! to, what `/proc` tells, and what follows.
//!
//! ```text
//!   pipes ──lines──► Timers, Heartbeats ──┐
//!   time  ─────────► (deadlines) ─────────┼─ trouble ─► inspect ─► report ─► restart, fail or nothing
//!   look  ──usage──► ProgressWatch ───────┘             (py-spy and /proc, beside the loop)
//! ```
//!
//! With nothing of this asked for there is no pipe, no look and no time to wait for.
//!
//! * `plan` says what is on, `report` what is said
//! * `watches` holds the three watches, and what they wait for
//! * `pipes`, `look`, `syscall` and `stack` are how the world is seen
//! * `inspect` finds out where all workers are
//! * `monitor` concludes what follows, and says so to the supervisor

mod inspect;
mod look;
mod monitor;
mod pipes;
mod plan;
mod report;
mod stack;
mod syscall;
mod watches;

pub(crate) use look::kernel_place_in;
pub(crate) use monitor::{HangMonitor, HangOutput};
pub use plan::{HangAction, HangPlan, HeartbeatPlan};
pub use report::{HangReport, WatchdogAction, WatchdogTimer};
