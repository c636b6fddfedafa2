//! What the typed flags mean on this machine: flags + environment + machine -> [`LaunchPlan`](rdzv_agent::LaunchPlan).
//!
//! [`resolve`] is a function of its arguments. It reads no clock, no variable and no file by itself;
//! what it needs to know about the machine it asks a [`Machine`], so tests decide what machine they
//! are on. Values are checked in the reference's order, so that a line with several mistakes is
//! answered with the same one.
//!
//! | file | decides |
//! |---|---|
//! | `launch` | the whole: asks the others, in the reference's order |
//! | `environment` | a snapshot of the variables |
//! | `nodes` | how many nodes: `--nnodes` |
//! | `workers` | how many workers: `--nproc-per-node`, OMP_NUM_THREADS, device lists |
//! | `meeting` | which rendezvous, and the run id |
//! | `entrypoint` | what each worker executes, and with which interpreter |
//! | `output` | where the workers' output goes |
//! | `observe` | who watches the run |
//! | `hang` | how workers that hang are noticed, and what follows |
//! | `signals` | which signals end the run, and after how long it is forced |
//! | `restart` | what comes between a failure and the next attempt |
//! | `verdict` | what is left when it is over: `--report`, `--exit-code` |
//! | `describe` | nothing: puts the launch in words |
//! | `reasons` | nothing: holds why, for `--explain` |
//! | `machine` | facts about this host |

mod describe;
mod entrypoint;
mod environment;
mod hang;
mod launch;
mod machine;
mod meeting;
mod nodes;
mod observe;
mod output;
mod reasons;
mod restart;
mod signals;
mod verdict;
mod workers;

#[cfg(test)]
pub(crate) mod tests;

pub(crate) use self::environment::Environment;
pub(crate) use self::launch::{Called, Launch, Note, resolve};
pub(crate) use self::machine::{Host, Machine};
pub(crate) use self::observe::Observers;
pub(crate) use self::verdict::{Wishes, wishes};
