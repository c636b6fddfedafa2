//! The workers of one agent, which change state together.
//!
//! ```text
//!                 Joined        Assigned       Started × n
//!   INIT ─Begin─► joining ────► assigning ───► starting ────► HEALTHY
//!                    ▲                            │              │ one failed or hangs · signal ·
//!                    │                            │              │ keeper lost
//!                    │                spawn failed│              ▼
//!                    │                            └─────────► stopping ── grace over: SIGKILL
//!                    │ restarts left                             │ no worker alive
//!                    └──────────── STOPPED ◄──────────────── clearing ◄── all exited 0 (HEALTHY)
//!                                                                │ nothing left behind
//!                                        SUCCEEDED · FAILED ◄────┴── exit barrier (several agents)
//! ```
//!
//! Between clearing and joining again the group rests for as long as it was told to
//! ([`GroupSpec::settle_delay`]), in STOPPED.
//!
//! A change of membership while the workers run leads from HEALTHY through stopping and clearing to
//! joining, without using a restart; what other news of other nodes does is in `peers`.
//!
//! * [`GroupSpec`] says what the group is, [`WorkerGroup`] is the machine that decides,
//!   [`GroupInput`] and [`GroupOutput`] are its words.
//! * [`plan`] turns ranks into each worker's environment and arguments.
//! * [`policy`] holds the restart budget and what repeated signals mean for the grace.
//! * [`exit`] is what the kernel says of the end of a process. [`Evidence`] is what else is known,
//!   [`diagnosis`] makes a [`Cause`] of both, and [`Failure`] is cause and evidence: it can be
//!   reported and sent. [`first_failure`] finds the one that came first.
//! * [`uninterruptible`] tells workers that the kernel does not let go.
//! * [`barrier`] names the store keys that agents meet at.
//!
//! Invariants, cited by the tests: *G1* restarts never exceed the budget; *G2* after
//! [`GroupOutput::Finish`] no worker is alive unless the kernel refused to end it, and that is
//! said; *G3* the first failure is the one reported.

pub mod barrier;
pub mod cause;
pub mod diagnosis;
mod evidence;
pub mod exit;
mod failure;
mod first_failure;
mod machine;
mod peers;
mod phase;
pub mod plan;
pub mod policy;
mod spec;
mod starting;
pub mod uninterruptible;
mod words;

pub use cause::Cause;
pub use evidence::{ErrorFile, Evidence};
pub use exit::{Exit, WorkerExit};
pub use failure::Failure;
pub use first_failure::first_failure;
pub use machine::WorkerGroup;
pub use plan::WorkerPlace;
pub use spec::{GroupSpec, Master, Round, VisibleDevices};
pub use words::{Ending, GroupInput, GroupOutput, GroupState};
