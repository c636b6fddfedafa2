//! What the typed flags mean on this machine: flags + environment + machine -> [`LaunchPlan`].
//!
//! [`resolve`] is a function of its arguments. It reads no clock, no variable and no file by itself;
//! what it needs to know about the machine it asks a [`Machine`], so tests decide what machine they
//! are on. Values are checked in the reference's order, so that a line with several mistakes is
//! answered with the same one.
//!
//! | file | decides |
//! |---|---|
//! | `nodes` | how many nodes: `--nnodes` |
//! | `workers` | how many workers: `--nproc-per-node`, OMP_NUM_THREADS, device lists |
//! | `meeting` | which rendezvous, and the run id |
//! | `entrypoint` | what each worker executes, and with which interpreter |
//! | `output` | where the workers' output goes |
//! | `signals` | which signals end the run, and after how long it is forced |
//! | `machine` | facts about this host |

mod entrypoint;
mod machine;
mod meeting;
mod nodes;
mod output;
mod signals;
mod workers;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use rdzv_agent::LaunchPlan;
use rdzv_core::env;

pub(crate) use self::entrypoint::RUN_PATH_NAME;
pub(crate) use self::machine::{Host, Machine};
use crate::args::RunArgs;
use crate::exit::{Raised, Refusal};

/// A snapshot of the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Environment(pub(crate) BTreeMap<OsString, OsString>);

impl Environment {
    /// The value of a variable, if it is set; bytes that are no text are replaced.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        let value = self.0.get(OsStr::new(name))?;
        Some(value.to_string_lossy().into_owned())
    }

    /// The same, without an empty one.
    pub(crate) fn filled(&self, name: &str) -> Option<String> {
        self.text(name).filter(|value| !value.is_empty())
    }
}

/// Under which name the launcher was called, as far as that changes what it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Called {
    /// Directory of the link named `torchrun`, if it was called by one: an environment's
    /// interpreter may stand beside it.
    pub(crate) beside: Option<PathBuf>,
    /// True gives scripts `--local-rank=N`, as the older launcher does.
    pub(crate) local_rank_argument: bool,
}

/// Where events go (`--event-log-handler`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventHandler {
    /// Nowhere. `dynamic_rendezvous` is nowhere, too: it is the sink of rendezvous events.
    Null,
    /// One JSON object per line on stderr.
    Console,
}

/// Something the user should know, to be logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Note {
    /// Shown by default.
    Warning(String),
    /// Shown with `LOGLEVEL=INFO`.
    Info(String),
}

/// A launch, ready to run.
#[derive(Debug)]
pub(crate) struct Launch {
    /// For the agent.
    pub(crate) plan: LaunchPlan,
    /// For the observer.
    pub(crate) events: EventHandler,
    /// For the user.
    pub(crate) notes: Vec<Note>,
}

/// Decides what a command line means here.
pub(crate) fn resolve(
    arguments: &RunArgs,
    called: &Called,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<Launch, Refusal> {
    let mut notes = Vec::new();
    let nodes = nodes::parse(&arguments.nnodes)?;
    if arguments.max_restarts < 0 {
        return Err(assertion("max_restarts must be >= 0"));
    }
    meeting::warn(arguments, &nodes, &mut notes);
    let local_world_size =
        workers::local_world_size(&arguments.nproc_per_node, environment, machine)?;
    let mut workers_environment = environment.0.clone();
    workers::limit_threads(local_world_size, &mut workers_environment, &mut notes);
    let settings = meeting::settings(&arguments.rdzv_conf)?;
    let logs = output::plan(arguments, environment, machine)?;
    let shutdown_timeout = signals::shutdown_timeout(arguments, environment)?;
    let entrypoint = entrypoint::build(arguments, called, environment, machine)?;
    let meeting = meeting::choose(arguments, &nodes, &settings, machine, &mut notes)?;
    let local_world_size = u32::try_from(local_world_size)
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| {
            assertion(&format!(
                "nproc_per_node must be > 0, got {local_world_size}"
            ))
        })?;
    if arguments.monitor_interval.is_nan() || arguments.monitor_interval <= 0.0 {
        return Err(assertion(&format!(
            "monitor_interval must be > 0, got {}",
            arguments.monitor_interval
        )));
    }
    workers::check_numa_binding(arguments, environment, machine)?;
    let events = match arguments.event_log_handler.as_str() {
        "console" => EventHandler::Console,
        "null" | "dynamic_rendezvous" => EventHandler::Null,
        other => return Err(Raised::new("KeyError", format!("'{other}'")).into()),
    };
    let signals = signals::numbers(&arguments.signals_to_handle, &mut notes)?;
    if arguments.virtual_local_rank {
        workers::check_virtual_local_rank(local_world_size, environment)?;
    }
    let is_one = |name| environment.text(name).as_deref() == Some("1");
    Ok(Launch {
        plan: LaunchPlan {
            entrypoint,
            role: arguments.role.clone(),
            run_id: meeting.run_id,
            local_world_size,
            rendezvous: meeting.plan,
            max_restarts: u32::try_from(arguments.max_restarts).unwrap_or(u32::MAX),
            shutdown_timeout,
            signals,
            signals_text: arguments.signals_to_handle.clone(),
            virtual_local_rank: arguments.virtual_local_rank,
            share_store: !is_one(env::TORCH_DISABLE_SHARE_RDZV_TCP_STORE),
            local_addr: arguments
                .local_addr
                .clone()
                .filter(|address| !address.is_empty()),
            identical_workers: is_one(env::TORCH_ELASTIC_WORKER_IDENTICAL),
            logs,
            environment: workers_environment,
            rendezvous_backend: meeting.backend,
        },
        events,
        notes,
    })
}

fn assertion(text: &str) -> Refusal {
    Raised::new("AssertionError", text).into()
}
