//! The workers of one agent, which change state together.
//!
//! ```text
//!                 Joined        Assigned       Started × n
//!   INIT ─Begin─► joining ────► assigning ───► starting ────► HEALTHY
//!                    ▲                            │              │ one failed or hangs · signal ·
//!                    │                            │              │ keeper lost
//!                    │                spawn failed│              ▼
//!                    │                            └─────────► stopping ── timeout: SIGKILL
//!                    │ restarts left                             │ no worker alive
//!                    └──────────── STOPPED ◄──────────────── clearing ◄── all exited 0 (HEALTHY)
//!                                                                │ nothing left behind
//!                                        SUCCEEDED · FAILED ◄────┴── exit barrier (several agents)
//! ```
//!
//! After a stop of its workers, the group waits for [`RestartOptions::settle_delay`] in the state
//! STOPPED before it joins again.
//!
//! With `--in-process`, workers that can recover leave HEALTHY through the state recovering and
//! keep their processes (`machine::recovery`).
//!
//! A change of membership while the workers run leads from HEALTHY through stopping and clearing to
//! joining. If the cause is a restart of another node, the change uses one restart of the common
//! budget, except with `--in-process`. Any other change uses none. `machine::peers` lists the other
//! events of other nodes.
//!
//! * [`GroupSpec`] specifies the group, [`WorkerGroupMachine`] is the machine that decides,
//!   [`GroupInput`] and [`GroupOutput`] are its inputs and outputs.
//! * [`environment`] turns ranks into each worker's environment and arguments.
//! * [`policy`] holds the restart budget, and shortens the shutdown timeout when signals repeat.
//! * [`exit`] represents process exits as the kernel reports them, and [`Evidence`] holds all other
//!   known facts. [`diagnosis`] determines a [`Cause`] from both.
//! * [`Failure`] is cause and evidence; it can be reported and sent. [`first_failure()`] finds the
//!   failure that came first. [`Finality`] is the reason why no restart follows.
//! * [`barrier`] names the store keys that agents share.
//!
//! Invariants, cited by the tests:
//!
//! * *INV-G1*: restarts never exceed the budget.
//! * *INV-G2*: after [`GroupOutput::Finish`] no worker is alive. The exception is a worker that
//!   SIGKILL did not end; the group reports it.
//! * *INV-G3*: the group reports the first failure.

mod awaited;
pub mod barrier;
pub mod cause;
pub mod diagnosis;
pub mod environment;
mod evidence;
pub mod exit;
mod failure;
mod finality;
mod first_failure;
mod machine;
pub mod membership;
mod options;
pub mod policy;
mod types;

pub use awaited::{Awaited, StopStep};
pub use cause::Cause;
pub use evidence::{ErrorFile, Evidence};
pub use exit::{Exit, WorkerExit};
pub use failure::{Failure, rfc3339};
pub use finality::Finality;
pub use first_failure::first_failure;
pub use machine::WorkerGroupMachine;
pub use options::{
    GroupIdentity, GroupSpec, PreemptionPlan, RecoveryRule, RestartOptions, StopOptions,
};
pub use types::{
    GroupEnding, GroupInput, GroupOutput, GroupState, Master, MembershipCause, Round, StartRequest,
    WorkerRanks,
};
