//! Detection, inspection and report of workers that hang, and their stop.
//!
//! The agent stops such workers only if the user, or the worker itself, requested that.
//! `rdzv_agent_proto::hang` decides what a hang is. This module contains the pipes that workers
//! write to, the readings of `/proc`, and the action that follows.
//!
//! ```text
//!   pipes ──lines──► Timers, Heartbeats ──┐
//!   time  ─────────► (deadlines) ─────────┼─ trouble ─► inspect ─► report ─► restart or fail
//!   look  ──usage──► ProgressWatch ───────┘             (py-spy and /proc, beside the loop)
//!                                                  └─ exchange ─► comparison of all nodes
//! ```
//!
//! If no watch is on, there is no pipe, no reading and no deadline.
//!
//! * `plan` contains the settings, `report` the texts
//! * `watches` contains the three watches and their deadlines
//! * `pipes`, `look`, `syscall` and `stack` read from workers and from the kernel
//! * `exchange` connects the agents of a round, and `stragglers` compares the speed of ranks
//! * `recorder` reads PyTorch's flight recorder from a worker that serves requests
//! * `inspect` finds out what all workers are doing
//! * `monitor` decides on the action and passes it to the supervisor

mod exchange;
mod inspect;
mod look;
mod monitor;
mod pipes;
mod plan;
mod recorder;
mod report;
mod stack;
mod stragglers;
mod syscall;
mod watches;

pub(crate) use exchange::Peers;
pub(crate) use inspect::begin as inspect;
pub(crate) use look::kernel_state_in;
pub(crate) use monitor::{HangMonitor, HangOutput};
pub(crate) use pipes::Source;
pub use plan::{HangAction, HangPlan, HeartbeatPlan};
pub(crate) use recorder::Recorders;
pub use report::{HangReport, WatchdogAction, WatchdogTimer};
pub(crate) use watches::HangEvent;
