//! The whole of a launch.

use std::path::PathBuf;

use rdzv_agent::LaunchPlan;
use rdzv_core::env;
use rdzv_rendezvous::BackendRegistry;

use super::reasons::Reasons;
use super::{
    Environment, Machine, Observers, describe, entrypoint, hang, meeting, nodes, observe, output,
    restart, signals, workers,
};
use crate::args::RunArgs;
use crate::exit::{Raised, Refusal};

/// Under which name the launcher was called, as far as that changes what it does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Called {
    /// Directory of the link named `torchrun`, if it was called by one: an environment's
    /// interpreter may stand beside it.
    pub(crate) beside: Option<PathBuf>,
    /// True gives scripts `--local-rank=N`, as the older launcher does.
    pub(crate) local_rank_argument: bool,
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
    /// Who watches.
    pub(crate) observers: Observers,
    /// For the user.
    pub(crate) notes: Vec<Note>,
    /// For a user who asks.
    pub(crate) reasons: Reasons,
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
    let count =
        workers::local_world_size(&arguments.nproc_per_node, environment, machine, &mut notes)?;
    let local_world_size = count.workers;
    let mut workers_environment = environment.0.clone();
    workers::limit_threads(local_world_size, &mut workers_environment, &mut notes);
    let settings = meeting::settings(&arguments.rdzv_conf)?;
    let logs = output::plan(arguments, environment, machine)?;
    let shutdown_timeout = signals::shutdown_timeout(arguments, environment)?;
    let (entrypoint, interpreter) = entrypoint::build(arguments, called, environment, machine)?;
    let backends = BackendRegistry::with_defaults();
    let meeting = meeting::choose(arguments, &nodes, &settings, &backends, machine, &mut notes)?;
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
    let bindings = workers::numa_binding(arguments, environment, machine, local_world_size)?;
    let observers = observe::plan(arguments, environment, machine, &mut notes)?;
    let signals = signals::numbers(&arguments.signals_to_handle, &mut notes)?;
    if arguments.virtual_local_rank {
        workers::check_virtual_local_rank(local_world_size, environment)?;
    }
    let hang = hang::plan(
        &arguments.hang,
        &entrypoint,
        environment,
        machine,
        &mut workers_environment,
    )?;
    let is_one = |name| environment.text(name).as_deref() == Some("1");
    let restarts = restart::restarts(&arguments.restart)?;
    let plan = LaunchPlan {
        role: arguments.role.clone(),
        run_id: meeting.run_id,
        local_world_size,
        rendezvous: meeting.plan,
        backends,
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
        settle_delay: restarts.settle_delay,
        non_retryable: restarts.non_retryable,
        overhear_stderr: !arguments.verdict.bare_stderr,
        environment: workers_environment,
        rendezvous_backend: meeting.backend,
        hang,
        processors: bindings
            .iter()
            .map(|binding| binding.processors.clone())
            .collect(),
        ..LaunchPlan::new(entrypoint)
    };
    notes.push(Note::Info(describe::describe(arguments, &nodes, &plan)));
    Ok(Launch {
        plan,
        observers,
        notes,
        reasons: Reasons {
            nodes: (nodes.least, nodes.most),
            workers: count.reason,
            meeting: meeting.reasons,
            interpreter,
            bindings,
        },
    })
}

fn assertion(text: &str) -> Refusal {
    Raised::new("AssertionError", text).into()
}
