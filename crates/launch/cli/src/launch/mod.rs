//! The launch of workers: the configuration of the agent, and its explanation.
//!
//! Flags, environment and machine determine the [`AgentConfig`](rdzv_agent::AgentConfig). Most
//! files contain a group of flags, the function that resolves them and the function that explains
//! them. [`resolve()`] reads no clock and no variable directly, and no file except the job token
//! and the certificates. It asks a [`Machine`] for facts about the host, so tests can choose their
//! machine.
//!
//! | file | holds |
//! |---|---|
//! | `flags` | all flags of a launcher, in the order of `torchrun` |
//! | `context` | environment, facts about the host, notes to the user |
//! | `worker_count` | numbers of nodes and workers; threads |
//! | `placement` | processors and devices of each worker |
//! | `rendezvous_choice` | backend, endpoint and run id |
//! | `rendezvous` | the rendezvous of the agent: the choice, its credentials, the workers' store |
//! | `entrypoint` | the command of each worker, and its interpreter |
//! | `worker_output` | files and console |
//! | `restarts` | restarts, shutdown timeout, signals |
//! | `preemption` | the notice of a scheduler that takes the nodes away |
//! | `node_check` | the command that has to succeed before this node joins |
//! | `hang_detection` | workers that hang |
//! | `observers` | events, status, health |
//! | `results` | report file, exit code, commands that get the report |
//! | `terminal_view` | the view on a terminal |
//! | `resolve` | the whole plan, in the order of checks of `torchrun` |
//! | `explain` | the whole explanation |
//! | `rendezvous_explanation`, `worker_variables` | the longer sections of the explanation |

mod context;
mod entrypoint;
mod explain;
mod flags;
mod hang_detection;
mod node_check;
mod observers;
mod placement;
mod preemption;
mod rendezvous;
mod rendezvous_choice;
mod rendezvous_explanation;
mod resolve;
mod restarts;
mod results;
mod terminal_view;
mod worker_count;
mod worker_output;
mod worker_variables;

#[cfg(test)]
mod tests;

pub(crate) use self::context::{Environment, Machine, Note, ThisHost, host_name};
pub(crate) use self::entrypoint::Called;
pub(crate) use self::explain::explain;
pub(crate) use self::flags::{LaunchArgs, RunArgs};
pub(crate) use self::observers::{Observers, address as status_address};
pub(crate) use self::preemption::{PreemptionArgs, folder_of};
pub(crate) use self::resolve::{Launch, resolve};
pub(crate) use self::results::{Hook, Hooks};
pub(crate) use self::worker_count::grouped;
