//! Resolution of a command line and its context to an [`AgentConfig`].

use std::ffi::OsStr;
use std::fmt::Display;

use rdzv_agent::AgentConfig;
use rdzv_agent::config::{GroupIdentity, LogBase, RendezvousPlan};
use rdzv_agent::launcher::python::Interpreter;
use rdzv_agent_proto::topology::Binding;

use super::context::{Context, Environment, Machine, Note};
use super::entrypoint::{self, Called};
use super::flags::RunArgs;
use super::observers::Observers;
use super::preemption::deadline;
use super::rendezvous_choice::{RendezvousChoice, RendezvousReasons};
use super::restarts::check_monitor_interval;
use super::worker_count::{Nodes, WorkerCount};
use super::{placement, rendezvous};
use crate::exit::Refusal;
use crate::scheduler::Scheduled;

/// Launch that is ready to run, with the reasons that `--explain` shows.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) plan: AgentConfig,
    pub(crate) observers: Observers,
    pub(crate) notes: Vec<Note>,
    pub(super) scheduled: Scheduled,
    /// Unix time in seconds at which the job must end, if it is known.
    pub(super) deadline: Option<u64>,
    pub(super) nodes: Nodes,
    pub(super) count: WorkerCount,
    pub(super) rendezvous: RendezvousReasons,
    /// Interpreter of the workers, if they have one, and the reason for it.
    pub(crate) interpreter: Option<Interpreter>,
    /// Processors of each worker, by local rank.
    pub(super) bindings: Vec<Binding>,
}

impl Launch {
    /// Returns the settings that are already set, which advice must not name.
    pub(crate) fn active(&self) -> Vec<String> {
        let plan = &self.plan;
        let flags = [
            ("-r", plan.logs.writes_files()),
            ("--hang-timeout", plan.hang.progress.is_some()),
            ("--nnodes", self.nodes.least < self.nodes.most),
        ];
        let flags = flags.iter().filter(|(_, is_set)| *is_set);
        let flags = flags.map(|(name, _)| (*name).to_owned());
        let variables = plan.environment.keys();
        flags
            .chain(variables.map(|name| name.to_string_lossy().into_owned()))
            .collect()
    }
}

/// Resolves a command line.
///
/// Values of torchrun's flags are checked in the order of `torchrun`. If several of them are wrong,
/// both programs report the same one.
pub(crate) fn resolve(
    args: &RunArgs,
    called: &Called,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<Launch, Refusal> {
    let mut context = Context::new(environment, machine);
    let (is_strict, scheduled) = (called.is_strict, &args.scheduled);
    let nodes = args.count.nodes()?;
    let restarts = args.restart.resolve(args.max_restarts)?;
    let choice = RendezvousChoice {
        arguments: &args.rendezvous,
        fixed: &args.fixed,
        nodes: &nodes,
        spares: args.spares,
    };
    choice.check(is_strict, &mut context)?;
    for warning in &scheduled.warnings {
        context.warn(warning);
    }
    let count = args.count.workers(&mut context)?;
    let settings = args.rendezvous.settings()?;
    let mut logs = args
        .output
        .resolve(args.collapse, args.logs_specs.as_deref(), &context)?;
    logs.capture_stderr = !args.report.bare_stderr;
    let shutdown_timeout = args
        .stop
        .shutdown_timeout(scheduled.longest_shutdown_timeout, environment)?;
    let (entrypoint, interpreter) =
        args.command
            .resolve(&args.training_script, called, &context)?;
    // `torchrun` has no such warning, so the link of that name does not print it.
    if let Some((program, reason)) = interpreter.as_ref().filter(|_| is_strict)
        && let Some((_, skipped)) = reason.split_once("; ")
    {
        context.warn(format!(
            "{skipped}, so workers run with {}",
            program.to_string_lossy()
        ));
    }
    let (mut rendezvous, run_id, reasons) =
        rendezvous::resolve(args, &choice, &settings, is_strict, &mut context)?;
    let local_world_size = count.local_world_size()?;
    check_monitor_interval(args.monitor_interval)?;
    let observers = args
        .observe
        .resolve(&args.event_log_handler, &mut context)?;
    let stop = args
        .stop
        .resolve(shutdown_timeout, is_strict, &mut context)?;
    let (placement, bindings) = placement::resolve(args, local_world_size, &context)?;
    let hang = args.hang.resolve(&entrypoint, &mut context)?;
    let recovery = args.restart.recovery(&rendezvous.plan, &context)?;
    rendezvous.node_check = args.node_check.resolve()?;
    args.restart.exit_barrier(is_strict, &mut rendezvous)?;
    // The scheduler's limit applies after SIGTERM, not after a notice.
    let after_notice = args.stop.shutdown_timeout(None, environment)?;
    let preemption = args.preemption.resolve(after_notice, &context)?;
    let deadline = deadline(scheduled.deadline, &mut context);
    let trust = args.trust.resolve(
        |name| environment.0.get(OsStr::new(name)).cloned(),
        &context.absolute(""),
    )?;
    rendezvous::admit(trust, &choice, &settings, &mut rendezvous, &mut context)?;
    let preload = entrypoint::preload(
        args.restart.preload.as_deref(),
        interpreter.as_ref(),
        &mut context,
    )?;
    let plan = AgentConfig {
        preload,
        environment: std::mem::take(&mut context.workers),
        identity: GroupIdentity {
            role: args.role.clone(),
            run_id,
            local_world_size,
        },
        restarts,
        stop,
        preemption,
        rendezvous,
        placement,
        logs,
        recovery,
        hang,
        entrypoint,
        ..AgentConfig::default()
    };
    context.info(configuration(args, &nodes, &plan));
    Ok(Launch {
        plan,
        observers,
        notes: context.notes,
        scheduled: scheduled.clone(),
        deadline,
        nodes,
        count,
        rendezvous: reasons,
        interpreter,
        bindings,
    })
}

/// Returns the launch as text, for `LOGLEVEL=INFO`.
///
/// The fields are those that `torchrun` lists, with the values in effect.
fn configuration(args: &RunArgs, nodes: &Nodes, plan: &AgentConfig) -> String {
    let (endpoint, settings) = match &plan.rendezvous.plan {
        RendezvousPlan::Local => ("none needed".to_owned(), String::new()),
        RendezvousPlan::Static {
            endpoint, timeout, ..
        } => (
            endpoint.to_string(),
            format!("timeout={}", timeout.as_secs()),
        ),
        RendezvousPlan::Dynamic { parameters } => (
            parameters.endpoint.clone(),
            parameters.config.pairs().join(","),
        ),
    };
    let log_dir = match &plan.logs.base {
        LogBase::Directory(path) => path.display().to_string(),
        LogBase::Temporary(path) => format!("a temporary directory in {}", path.display()),
        LogBase::Discard => "none".to_owned(),
    };
    let numa = args.numa_binding.as_deref().unwrap_or("None");
    let fields: [(&str, &dyn Display); 18] = [
        ("entrypoint", &plan.entrypoint.name),
        ("min_nodes", &nodes.least),
        ("max_nodes", &nodes.most),
        ("nproc_per_node", &plan.identity.local_world_size),
        ("run_id", &plan.identity.run_id),
        ("rdzv_backend", &plan.rendezvous.plan.backend()),
        ("rdzv_endpoint", &endpoint),
        ("rdzv_configs", &settings),
        ("max_restarts", &plan.restarts.max_restarts),
        ("monitor_interval", &args.monitor_interval),
        ("shutdown_timeout", &plan.stop.shutdown_timeout.as_secs()),
        ("log_dir", &log_dir),
        // A setting of torchelastic's library, for which `torchrun` has no flag.
        ("metrics_cfg", &"{}"),
        ("event_log_handler", &args.event_log_handler),
        ("numa_options", &numa),
        ("signals_to_handle", &plan.stop.signals_text),
        (
            "duplicate_stdout_filters",
            &plan.logs.stdout_filters.join(","),
        ),
        (
            "duplicate_stderr_filters",
            &plan.logs.stderr_filters.join(","),
        ),
    ];
    let lines = fields.map(|(name, value)| format!("\n  {name:<24} : {value}"));
    format!("launch configuration:{}", lines.concat())
}
