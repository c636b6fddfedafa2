//! Resolves a whole command line: flags, environment and machine give a [`AgentConfig`].

use std::ffi::OsStr;
use std::fmt::Display;

use rdzv_agent::python::Interpreter;
use rdzv_agent::{AgentConfig, LogBase, RendezvousPlan};
use rdzv_agent_proto::topology::Binding;
use rdzv_core::env;
use rdzv_rendezvous::BackendRegistry;
use rdzv_store::StorePolicy;

use super::context::{Context, Environment, Machine, Note};
use super::entrypoint::Called;
use super::flags::RunArgs;
use super::observers::Observers;
use super::rendezvous_choice::{RendezvousChoice, RendezvousReasons, known_voters, without_effect};
use super::worker_count::{Nodes, WorkerCount, check_virtual_local_rank, numa_binding};
use crate::exit::{Raised, Refusal};
use crate::scheduler::Scheduled;
use crate::trust::NO_TOKEN;

/// A launch, ready to run, with the reasons that `--explain` shows.
#[derive(Debug)]
pub(crate) struct Launch {
    /// For the agent.
    pub(crate) plan: AgentConfig,
    /// The observers of the run.
    pub(crate) observers: Observers,
    /// For the user.
    pub(crate) notes: Vec<Note>,
    pub(super) scheduled: Scheduled,
    /// Unix time in seconds at which the job has to end, if that is known.
    pub(super) deadline: Option<u64>,
    pub(super) nodes: Nodes,
    pub(super) count: WorkerCount,
    pub(super) rendezvous: RendezvousReasons,
    /// The reason for the number of restarts of the agent, if it was not given.
    pub(super) agent_restarts: &'static str,
    /// The interpreter of the workers, if they have one, and the reason for it.
    pub(super) interpreter: Option<Interpreter>,
    /// The processors of each worker, by local rank.
    pub(super) bindings: Vec<Binding>,
}

/// Resolves a command line. Values are checked in the order of `torchrun`, so that a line with
/// several mistakes is answered with the same one.
pub(crate) fn resolve(
    arguments: &RunArgs,
    called: &Called,
    environment: &Environment,
    machine: &dyn Machine,
) -> Result<Launch, Refusal> {
    let mut context = Context {
        environment,
        machine,
        notes: Vec::new(),
    };
    let nodes = arguments.count.nodes()?;
    let nodes = nodes.without_spares(arguments.spares)?;
    if arguments.max_restarts < 0 {
        let raised = assertion("max_restarts must be >= 0".to_owned());
        return Err(raised
            .plainly(format!(
                "--max-restarts is {} and has to be 0 or more",
                arguments.max_restarts
            ))
            .into());
    }
    let choice = RendezvousChoice {
        arguments: &arguments.rendezvous,
        fixed: &arguments.fixed,
        nodes: &nodes,
    };
    if arguments.spares > 0 && choice.has_fixed_nodes() {
        let problem = "nodes with fixed ranks have no reserve: a dynamic rendezvous is needed, such as --rdzv-backend c10d";
        return Err(Refusal::argument("--spares", problem));
    }
    choice.warn(&mut context);
    for warning in &arguments.scheduled.warnings {
        context.warn(warning);
    }
    let count = arguments.count.workers(&mut context)?;
    let mut workers_environment = environment.0.clone();
    count.limit_threads(&mut workers_environment, &mut context);
    let settings = arguments.rendezvous.settings()?;
    let logs = arguments.output.resolve(
        arguments.collapse,
        arguments.logs_specs.as_deref(),
        &context,
    )?;
    let longest_grace = arguments.scheduled.longest_grace;
    let shutdown_timeout = arguments
        .stop
        .shutdown_timeout(longest_grace, environment)?;
    let (entrypoint, interpreter) =
        arguments
            .command
            .resolve(&arguments.training_script, called, &context)?;
    let backends = BackendRegistry::with_defaults();
    choice.check_options(&settings, &backends, called.is_strict, &mut context)?;
    let mut rendezvous = choice.choose(&settings, &backends, &mut context)?;
    if called.is_strict {
        choice.check_values(&rendezvous.plan)?;
    }
    if let RendezvousPlan::Dynamic { parameters } = &mut rendezvous.plan {
        let (script, has_run_id) = (&arguments.training_script, choice.has_run_id());
        parameters.program = Some(arguments.command.program(script, has_run_id, &context));
    }
    let local_world_size = u32::try_from(count.workers)
        .ok()
        .filter(|size| *size > 0)
        .ok_or_else(|| {
            let workers = count.workers;
            let raised = assertion(format!("nproc_per_node must be > 0, got {workers}"));
            raised.plainly(format!(
                "--nproc-per-node is {workers} and has to be 1 or more"
            ))
        })?;
    if arguments.monitor_interval.is_nan() || arguments.monitor_interval <= 0.0 {
        let interval = arguments.monitor_interval;
        let raised = assertion(format!("monitor_interval must be > 0, got {interval}"));
        let sentence = format!("--monitor-interval is {interval} and has to be more than 0");
        return Err(raised.plainly(sentence).into());
    }
    let bindings = numa_binding(
        arguments.numa_binding.as_deref(),
        local_world_size,
        &context,
    )?;
    let observers = arguments
        .observe
        .resolve(&arguments.event_log_handler, &mut context)?;
    let signals = arguments.stop.signals(called.is_strict, &mut context)?;
    if arguments.virtual_local_rank {
        check_virtual_local_rank(local_world_size, environment)?;
    }
    let hang = arguments
        .hang
        .resolve(&entrypoint, &context, &mut workers_environment)?;
    let restarts = arguments.restart.resolve()?;
    let node_check = arguments.node_check.resolve()?;
    let (agent_restarts, why_agent_restarts) =
        arguments.restart.of_agent(&rendezvous.plan, &mut context);
    // A notice is another matter than the signal after which the scheduler kills.
    let after_notice = arguments.stop.shutdown_timeout(None, environment)?;
    let preemption = arguments.preemption.resolve(after_notice, &context)?;
    let given = environment.filled(env::RDZV_DEADLINE);
    let deadline = match given {
        Some(text) => text.parse().ok(),
        None => arguments.scheduled.deadline,
    };
    if let Some(deadline) = arguments.scheduled.deadline {
        let variable = workers_environment.entry(env::RDZV_DEADLINE.into());
        variable.or_insert_with(|| deadline.to_string().into());
    }
    let trust = arguments.trust.resolve(
        |name| environment.0.get(OsStr::new(name)).cloned(),
        &context.absolute(""),
    )?;
    for warning in &trust.warnings {
        context.warn(warning);
    }
    if trust.credentials.is_empty() && choice.is_reachable(&rendezvous.plan) {
        context.warn(NO_TOKEN);
    }
    for (name, path) in trust.variables {
        workers_environment.insert(name.into(), path.into());
    }
    if let RendezvousPlan::Dynamic { parameters } = &mut rendezvous.plan {
        parameters.credentials = trust.credentials.clone();
        parameters.torch_clients = trust.torch_clients;
        if let Some(places) = environment.filled(env::RDZV_CONTACT_POINTS) {
            parameters.known_voters = known_voters(&places)?;
        }
        for warning in without_effect(parameters) {
            context.warn(warning);
        }
    }
    let plan = AgentConfig {
        role: arguments.role.clone(),
        run_id: rendezvous.run_id,
        local_world_size,
        rendezvous: rendezvous.plan,
        backends,
        max_restarts: u32::try_from(arguments.max_restarts).unwrap_or(u32::MAX),
        agent_restarts,
        shutdown_timeout,
        signals,
        signals_text: arguments.stop.signals_to_handle.clone(),
        virtual_local_rank: arguments.virtual_local_rank,
        share_store: !environment.is_one(env::TORCH_DISABLE_SHARE_RDZV_TCP_STORE),
        store_policy: StorePolicy {
            limits: arguments.rendezvous.store_limits()?,
            credentials: trust.credentials,
            torch_clients: trust.torch_clients,
        },
        local_addr: arguments.fixed.local_addr(),
        identical_workers: environment.is_one(env::TORCH_ELASTIC_WORKER_IDENTICAL),
        logs,
        preemption,
        node_check,
        is_needed: arguments
            .scheduled
            .place
            .as_ref()
            .is_some_and(|place| nodes.are_all_needed_of(place.names.len())),
        settle_delay: restarts.settle_delay,
        non_retryable: restarts.non_retryable,
        capture_stderr: !arguments.report.bare_stderr,
        environment: workers_environment,
        rendezvous_backend: rendezvous.backend,
        hang,
        processors: bindings
            .iter()
            .map(|binding| binding.processors.clone())
            .collect(),
        ..AgentConfig::builder(entrypoint).build()
    };
    context.info(configuration(arguments, &nodes, &plan));
    Ok(Launch {
        plan,
        observers,
        notes: context.notes,
        scheduled: arguments.scheduled.clone(),
        deadline,
        nodes,
        count,
        rendezvous: rendezvous.reasons,
        agent_restarts: why_agent_restarts,
        interpreter,
        bindings,
    })
}

fn assertion(text: String) -> Raised {
    Raised::new("AssertionError", text)
}

/// The launch as text, for `LOGLEVEL=INFO`: the fields that `torchrun` lists, with the values in
/// effect.
fn configuration(arguments: &RunArgs, nodes: &Nodes, plan: &AgentConfig) -> String {
    let (endpoint, settings) = match &plan.rendezvous {
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
        LogBase::Temporary(path) => format!("a temporary one in {}", path.display()),
        LogBase::Discard => "none".to_owned(),
    };
    let numa = arguments.numa_binding.as_deref().unwrap_or("None");
    let fields: [(&str, &dyn Display); 18] = [
        ("entrypoint", &plan.entrypoint.name),
        ("min_nodes", &nodes.least),
        ("max_nodes", &nodes.most),
        ("nproc_per_node", &plan.local_world_size),
        ("run_id", &plan.run_id),
        ("rdzv_backend", &plan.rendezvous_backend),
        ("rdzv_endpoint", &endpoint),
        ("rdzv_configs", &settings),
        ("max_restarts", &plan.max_restarts),
        ("monitor_interval", &arguments.monitor_interval),
        ("shutdown_timeout", &plan.shutdown_timeout.as_secs()),
        ("log_dir", &log_dir),
        // A setting of torchelastic's library; `torchrun` has no flag for it.
        ("metrics_cfg", &"{}"),
        ("event_log_handler", &arguments.event_log_handler),
        ("numa_options", &numa),
        ("signals_to_handle", &plan.signals_text),
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
