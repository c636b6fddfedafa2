//! Workers that hang: noticed, looked at, reported, and ended where that was asked for.
//!
//! What a hang is, is decided in `rdzv_agent_proto::hang`; here are the pipes that workers write to, what
//! `/proc` tells, and what follows.
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
//! * `watches` holds the three watches; its `next` is one source of the agent's loop
//! * `pipes`, `look`, `syscall` and `stack` are how the world is seen
//! * `inspect` finds out where all workers are
//! * `act` is what the agent does about it

mod act;
mod inspect;
mod look;
mod pipes;
mod plan;
mod report;
mod stack;
mod syscall;
mod watches;

pub use plan::{HangAction, HangPlan, HeartbeatPlan};
pub use report::HangReport;
pub(crate) use watches::{HangNews, Watches};
