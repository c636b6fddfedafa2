//! What the workers of one node are; making that, and checking it.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdzv_agent_proto::topology::BindingMode;
use rdzv_core::ident::RunId;
use rdzv_rendezvous::BackendRegistry;

use super::{Defaults, SpecError, WorkerEntrypoint};
use crate::observe::{
    AgentMetrics, EventRegistry, EventSink, InfoLines, MetricsRegistry, RunFacts,
};
use crate::processes::signal_name;
use crate::topology::Hardware;
use crate::{AgentConfig, HangPlan, LogBase, LogPlan, MasterPort, RendezvousPlan};

/// Who is told of everything that happens in a run, on the thread of the agent.
pub type EventHandler = Arc<Mutex<Box<dyn EventSink + Send>>>;

/// What the workers of one node are: one role, one entry point, the same for the whole run. Made by
/// [`WorkerSpec::builder`], which checks it.
///
/// Other nodes of the job may have other roles and other numbers of workers; ranks follow from what
/// each of them says in the rendezvous.
#[derive(Clone)]
pub struct WorkerSpec {
    pub(super) entrypoint: WorkerEntrypoint,
    /// Everything that the agent has to know but the command, its environment and its processors.
    pub(super) config: AgentConfig,
    pub(super) monitor_interval: Duration,
    pub(super) master_addr: Option<String>,
    pub(super) numa_binding: Option<BindingMode>,
    pub(super) environment: Option<BTreeMap<OsString, OsString>>,
    pub(super) event_handlers: Vec<EventHandler>,
}

impl WorkerSpec {
    /// Begins a specification; everything but the entry point has a default:
    /// [`Defaults::LIBRARY`], role `default`, one worker, one node, output on the console.
    pub fn builder(entrypoint: WorkerEntrypoint) -> WorkerSpecBuilder {
        let mut config = AgentConfig::default();
        // Workers that are no processes of ours have no command.
        config.entrypoint.name = entrypoint.name();
        config.restarts.max_restarts = Defaults::LIBRARY.max_restarts;
        config.logs = LogPlan::new(LogBase::Temporary(crate::host::own_temporary_directory()));
        WorkerSpecBuilder::new(Self {
            entrypoint,
            config,
            monitor_interval: Defaults::LIBRARY.monitor_interval,
            master_addr: None,
            numa_binding: None,
            environment: None,
            event_handlers: Vec::new(),
        })
    }

    /// What each worker executes.
    pub fn entrypoint(&self) -> &WorkerEntrypoint {
        &self.entrypoint
    }

    /// The label of all its workers.
    pub fn role(&self) -> &str {
        &self.config.identity.role
    }

    /// How many workers the node starts.
    pub fn local_world_size(&self) -> u32 {
        self.config.identity.local_world_size
    }

    /// Settings of the agent. The entry point, the environment and the processors are those of a run.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// How often a supervisor is asked.
    pub fn monitor_interval(&self) -> Duration {
        self.monitor_interval
    }

    /// The configuration of an agent with processes.
    pub(super) fn process_config(&self) -> Result<AgentConfig, SpecError> {
        let mut config = self.agent_config();
        config.entrypoint = self.entrypoint.resolve(&config.environment)?;
        if let Some(mode) = self.numa_binding {
            let lists = config.visible_lists();
            let bound = Hardware::of_this_machine().bind(mode, &lists, self.local_world_size())?;
            config.placement.processors = bound
                .into_iter()
                .map(|binding| binding.processors)
                .collect();
        }
        Ok(config)
    }

    /// The configuration of an agent whose workers are no processes of ours.
    pub(super) fn agent_config(&self) -> AgentConfig {
        let mut config = self.config.clone();
        config.environment = match &self.environment {
            Some(given) => given.clone(),
            None => std::env::vars_os().collect(),
        };
        let names = config
            .stop
            .signals
            .iter()
            .map(|number| signal_name(*number));
        config.stop.signals_text = names.collect::<Vec<_>>().join(",");
        // Workers meet at the address of the agent with group rank 0.
        let rendezvous = &mut config.rendezvous;
        rendezvous.local_addr = self.master_addr.clone().or(rendezvous.local_addr.take());
        if let RendezvousPlan::Dynamic { parameters } = &mut rendezvous.plan {
            let given = rendezvous.local_addr.clone();
            parameters.local_addr = given.or_else(|| parameters.local_addr.take());
        }
        config
    }

    /// What events and metrics of its runs have in common.
    pub(super) fn facts(&self) -> RunFacts {
        RunFacts {
            entry_point: self.entrypoint.name(),
            ..RunFacts::new(&self.config)
        }
    }
}

impl fmt::Debug for WorkerSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkerSpec")
            .field("entrypoint", &self.entrypoint)
            .field("identity", &self.config.identity)
            .field("max_restarts", &self.config.restarts.max_restarts)
            .field("rendezvous", &self.config.rendezvous.plan)
            .finish_non_exhaustive()
    }
}

/// A specification in the making.
#[derive(Debug)]
#[must_use = "a specification is made by `build`"]
pub struct WorkerSpecBuilder {
    spec: WorkerSpec,
    event_registry: EventRegistry,
    event_handler_names: Vec<String>,
    metrics: Option<MetricsRegistry>,
}

macro_rules! setters {
    ($($(#[doc = $doc:literal])* $section:ident.$name:ident: $type:ty;)*) => {
        $(
            $(#[doc = $doc])*
            pub fn $name(mut self, $name: $type) -> Self {
                self.spec.config.$section.$name = $name;
                self
            }
        )*
    };
}

impl WorkerSpecBuilder {
    pub(super) fn new(spec: WorkerSpec) -> Self {
        Self {
            spec,
            event_registry: EventRegistry::with_defaults(),
            event_handler_names: Vec::new(),
            metrics: None,
        }
    }

    setters! {
        /// How many workers the node starts; 1 if nothing is said.
        identity.local_world_size: u32;
        /// How often the group may be restarted after a failure; 3. None is legal.
        restarts.max_restarts: u32;
        /// How long the node rests between the end of its workers and the next rendezvous; not at
        /// all. For hardware or file systems that need a moment after a crash.
        restarts.settle_delay: Duration;
        /// The dynamic rendezvous that there are, by name; those of rdzv.
        rendezvous.backends: BackendRegistry;
        /// The port of the workers' store; one that is free. With several nodes that of the agent
        /// with group rank 0 counts.
        rendezvous.master_port: MasterPort;
        /// False leaves hosting the workers' store to the worker with rank 0, at a port that is kept
        /// free until it starts. Static rendezvous always shares.
        rendezvous.share_store: bool;
        /// True computes ranks without an exchange, as the first torchelastic did: group rank ×
        /// local world size + local rank. All nodes must have the same role and size.
        rendezvous.identical_workers: bool;
        /// How long workers have between the closing signal and SIGKILL, on every path; 30 s.
        stop.shutdown_timeout: Duration;
        /// Time for which a node whose workers have succeeded waits for the others; 300 s.
        rendezvous.exit_barrier_timeout: Duration;
        /// Signals (numbers) that end the run in order when this process receives them; SIGTERM,
        /// SIGINT, SIGHUP and SIGQUIT. This process goes on handling them after the run, so give none
        /// if it should not.
        stop.signals: Vec<i32>;
        /// True gives every worker local rank 0 and the one device that is its own.
        placement.virtual_local_rank: bool;
    }

    /// Changes settings of the agent that have no method here.
    pub fn configure(mut self, change: impl FnOnce(&mut AgentConfig)) -> Self {
        change(&mut self.spec.config);
        self
    }

    /// How the nodes find one another; there is only this one.
    pub fn rendezvous(self, plan: RendezvousPlan) -> Self {
        self.configure(|config| config.rendezvous.plan = plan)
    }

    /// Where the workers' output goes; to the console, with error files in a temporary directory.
    pub fn logs(self, plan: LogPlan) -> Self {
        self.configure(|config| config.logs = plan)
    }

    /// How workers that hang are noticed, and what follows; not at all. For processes only.
    pub fn hang(self, plan: HangPlan) -> Self {
        self.configure(|config| config.hang = plan)
    }

    /// How often a [`SimpleElasticAgent`](super::SimpleElasticAgent) asks its supervisor; 0.1 s.
    pub fn monitor_interval(mut self, monitor_interval: Duration) -> Self {
        self.spec.monitor_interval = monitor_interval;
        self
    }

    /// Restarts and interval of one of torchelastic's generations.
    pub fn defaults(mut self, defaults: Defaults) -> Self {
        self.spec.config.restarts.max_restarts = defaults.max_restarts;
        self.spec.monitor_interval = defaults.monitor_interval;
        self
    }

    /// The label of all its workers; `default`.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.spec.config.identity.role = role.into();
        self
    }

    /// Adds arguments to the entry point.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.spec.entrypoint = self.spec.entrypoint.args(arguments);
        self
    }

    /// The name that all nodes of the job share; `none`.
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.spec.config.identity.run_id = RunId::new(run_id);
        self
    }

    /// Adds an exit code (minus the number for a signal) after which no restart is tried: a worker
    /// that ends with it by itself fails the run at once.
    pub fn non_retryable(mut self, code: i32) -> Self {
        self.spec.config.restarts.non_retryable.insert(code);
        self
    }

    /// The address that workers find the store at, if this agent hosts it; else
    /// [`local_addr`](Self::local_addr).
    pub fn master_addr(mut self, address: impl Into<String>) -> Self {
        self.spec.master_addr = Some(address.into());
        self
    }

    /// The address of this node that others should use; found out if nothing is said.
    pub fn local_addr(mut self, address: impl Into<String>) -> Self {
        self.spec.config.rendezvous.local_addr = Some(address.into());
        self
    }

    /// Copies teed lines of standard output that contain one of these texts into one file for all
    /// workers.
    pub fn duplicate_stdout_filters(mut self, needles: Vec<String>) -> Self {
        self.spec.config.logs.stdout_filters = needles;
        self
    }

    /// The same for standard error.
    pub fn duplicate_stderr_filters(mut self, needles: Vec<String>) -> Self {
        self.spec.config.logs.stderr_filters = needles;
        self
    }

    /// The environment that workers start from, instead of that of this process.
    pub fn environment(mut self, environment: BTreeMap<OsString, OsString>) -> Self {
        self.spec.environment = Some(environment);
        self
    }

    /// Adds someone who is told of everything that happens, on the thread of the agent: a closure, or
    /// any other sink of events. It must not block.
    pub fn event_handler(mut self, handler: impl EventSink + Send + 'static) -> Self {
        self.spec
            .event_handlers
            .push(Arc::new(Mutex::new(Box::new(handler))));
        self
    }

    /// Adds the handler of that name in the registry, such as `console` or `null`.
    pub fn event_log_handler(mut self, name: impl Into<String>) -> Self {
        self.event_handler_names.push(name.into());
        self
    }

    /// The event handlers that have names; those of torchelastic.
    pub fn event_registry(mut self, registry: EventRegistry) -> Self {
        self.event_registry = registry;
        self
    }

    /// Who receives the metrics of a run, under torchelastic's names; nobody.
    pub fn metrics(mut self, registry: MetricsRegistry) -> Self {
        self.metrics = Some(registry);
        self
    }

    /// Binds each worker to processors near its device; none is bound. For processes only.
    pub fn numa_binding(mut self, mode: BindingMode) -> Self {
        self.spec.numa_binding = Some(mode);
        self
    }

    /// Checks the whole.
    pub fn build(self) -> Result<WorkerSpec, SpecError> {
        let mut spec = self.spec;
        let refused = |why: &str| Err(SpecError::Setting(why.to_owned()));
        if spec.config.identity.local_world_size == 0 {
            return refused("local_world_size is 0: a node has at least one worker");
        }
        if spec.monitor_interval.is_zero() {
            return refused("monitor_interval is 0: it has to be more, such as 100 ms");
        }
        if spec.config.identity.role.is_empty() {
            return refused("the role is empty: give the workers one, such as 'default'");
        }
        if spec.config.restarts.non_retryable.contains(&0) {
            return refused(
                "exit code 0 is a success, so it cannot be among those that are not retried",
            );
        }
        if spec.entrypoint.name().is_empty() {
            return refused(
                "the entry point is empty: name a program, a script, a module or a function",
            );
        }
        check_rendezvous(&spec)?;
        let facts = spec.facts();
        let names = match self.event_handler_names.is_empty() {
            true => "null".to_owned(),
            false => self.event_handler_names.join(","),
        };
        let mut sinks: Vec<Box<dyn EventSink + Send>> =
            vec![Box::new(InfoLines::new(&facts, &names))];
        for name in self.event_handler_names {
            let handler = self.event_registry.create(&name, &facts).ok_or_else(|| {
                let known: Vec<&str> = self.event_registry.names().collect();
                SpecError::Setting(format!(
                    "there is no event handler '{name}': the registry has {}",
                    known.join(", ")
                ))
            })?;
            sinks.push(handler);
        }
        if let Some(registry) = self.metrics {
            sinks.push(Box::new(AgentMetrics::new(&facts, registry)));
        }
        let handlers = sinks.into_iter().map(|sink| Arc::new(Mutex::new(sink)));
        spec.event_handlers.extend(handlers);
        Ok(spec)
    }
}

fn check_rendezvous(spec: &WorkerSpec) -> Result<(), SpecError> {
    if matches!(spec.config.rendezvous.master_port, MasterPort::Kept(_)) {
        let why = if !matches!(spec.config.rendezvous.plan, RendezvousPlan::Local) {
            "this job may have others"
        } else if !spec.config.rendezvous.share_store {
            "here the worker with rank 0 hosts it"
        } else {
            return Ok(());
        };
        return Err(SpecError::Setting(format!(
            "a kept socket for the master port can be used where the agent of a single node hosts \
             the workers' store; {why}"
        )));
    }
    Err(SpecError::Setting(match &spec.config.rendezvous.plan {
        RendezvousPlan::Static {
            node_rank, nodes, ..
        } if node_rank.0 >= *nodes => format!(
            "node rank {node_rank} of {nodes} nodes: ranks are 0 to {}",
            nodes.saturating_sub(1)
        ),
        RendezvousPlan::Dynamic { parameters }
            if !spec
                .config
                .rendezvous
                .backends
                .contains(&parameters.backend) =>
        {
            format!(
                "there is no rendezvous backend '{}': the registry has {:?}",
                parameters.backend, spec.config.rendezvous.backends
            )
        }
        RendezvousPlan::Dynamic { parameters }
            if parameters.run_id != spec.config.identity.run_id.as_str() =>
        {
            format!(
                "the rendezvous is for run '{}', the workers are of run '{}'",
                parameters.run_id, spec.config.identity.run_id
            )
        }
        _ => return Ok(()),
    }))
}
