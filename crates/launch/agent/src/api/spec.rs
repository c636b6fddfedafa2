//! Specification of the workers of one node, its builder and its checks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdzv_agent_proto::topology::BindingMode;
use rdzv_core::ident::RunId;
use rdzv_rendezvous::BackendRegistry;

use super::{Defaults, SpecError, WorkerEntrypoint};
use crate::AgentConfig;
use crate::config::{LogBase, LogPlan, MasterPort, RendezvousPlan};
use crate::hang::HangPlan;
use crate::observe::{
    AgentMetrics, EventRegistry, EventSink, InfoLines, MetricsRegistry, RunFacts,
};
use crate::processes::signal_name;
use crate::topology::Hardware;

/// Handler that receives every event of a run, on the thread of the agent.
pub type EventHandler = Arc<Mutex<Box<dyn EventSink + Send>>>;

/// Specification of one node's workers: one role and one entry point.
/// [`WorkerSpec::builder`] creates and checks it. A specification is constant for the whole run.
///
/// Other nodes of the job may have other roles and other numbers of workers. The ranks follow from
/// the roles and numbers of all nodes.
#[derive(Clone)]
pub struct WorkerSpec {
    pub(super) entrypoint: WorkerEntrypoint,
    pub(super) config: AgentConfig,
    pub(super) monitor_interval: Duration,
    pub(super) master_addr: Option<String>,
    pub(super) numa_binding: Option<BindingMode>,
    pub(super) environment: Option<BTreeMap<OsString, OsString>>,
    pub(super) event_handlers: Vec<EventHandler>,
}

impl WorkerSpec {
    /// Returns a builder; everything but the entry point has a default.
    /// The defaults are [`Defaults::LIBRARY`], role `default`, one worker, one node, output on the
    /// console.
    pub fn builder(entrypoint: WorkerEntrypoint) -> WorkerSpecBuilder {
        let mut config = AgentConfig::default();
        // Workers that are not processes of this agent have no command.
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

    /// Returns the entry point of each worker.
    pub fn entrypoint(&self) -> &WorkerEntrypoint {
        &self.entrypoint
    }

    /// Returns the role of all workers.
    pub fn role(&self) -> &str {
        &self.config.identity.role
    }

    /// Returns the number of workers on the node.
    pub fn local_world_size(&self) -> u32 {
        self.config.identity.local_world_size
    }

    /// Returns the settings of the agent.
    /// A run sets the command, the environment and the processors in its own copy.
    pub fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// Returns the longest time between two polls of a supervisor.
    pub fn monitor_interval(&self) -> Duration {
        self.monitor_interval
    }

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
        // The workers' store is at the address of the agent with group rank 0.
        let rendezvous = &mut config.rendezvous;
        rendezvous.local_addr = self.master_addr.clone().or(rendezvous.local_addr.take());
        if let RendezvousPlan::Dynamic { parameters } = &mut rendezvous.plan {
            let given = rendezvous.local_addr.clone();
            parameters.local_addr = given.or_else(|| parameters.local_addr.take());
        }
        config
    }

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

/// Builder of a specification.
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
        /// Sets the number of workers on the node; the default is 1.
        identity.local_world_size: u32;
        /// Sets the maximum number of restarts after failures; the default is 3.
        /// 0 is valid.
        restarts.max_restarts: u32;
        /// Sets the pause between the workers' exit and the next rendezvous.
        /// The default is none. Use it for hardware or file systems that need time after a crash.
        restarts.settle_delay: Duration;
        /// Sets the dynamic rendezvous backends, by name; the default is those of rdzv.
        rendezvous.backends: BackendRegistry;
        /// Sets the port of the workers' store; the default is a free port.
        /// With several nodes, the port of the agent with group rank 0 applies.
        rendezvous.master_port: MasterPort;
        /// `false` lets the worker with rank 0 host the workers' store.
        /// The agent reserves the port until that worker starts. Static rendezvous always shares
        /// the store.
        rendezvous.share_store: bool;
        /// `true` computes ranks without an exchange, as the first torchelastic did.
        /// The rank is group rank × local world size + local rank. All nodes must have the same
        /// role and size.
        rendezvous.identical_workers: bool;
        /// Sets the time between the closing signal and SIGKILL; the default is 30 s.
        stop.shutdown_timeout: Duration;
        /// Limits the wait of a successful node for others; default: none.
        rendezvous.exit_barrier_timeout: Option<Duration>;
        /// Sets the numbers of the signals on which the agent stops the run.
        /// The default is SIGTERM, SIGINT, SIGHUP and SIGQUIT. This process continues to handle
        /// them after the run, so specify none if it should not.
        stop.signals: Vec<i32>;
        /// `true` gives every worker local rank 0 and only its own device.
        placement.virtual_local_rank: bool;
    }

    /// Changes settings of the agent that have no method here.
    pub fn configure(mut self, change: impl FnOnce(&mut AgentConfig)) -> Self {
        change(&mut self.spec.config);
        self
    }

    /// Sets the kind of rendezvous; the default is this node alone.
    pub fn rendezvous(self, plan: RendezvousPlan) -> Self {
        self.configure(|config| config.rendezvous.plan = plan)
    }

    /// Sets the destinations of the workers' output.
    /// The default is the console, with error files in a temporary directory.
    pub fn logs(self, plan: LogPlan) -> Self {
        self.configure(|config| config.logs = plan)
    }

    /// Sets the detection of hangs and the action; the default is no detection.
    /// Applies only to worker processes.
    pub fn hang(self, plan: HangPlan) -> Self {
        self.configure(|config| config.hang = plan)
    }

    /// Sets the polling interval of a [`SimpleElasticAgent`]; the default is 0.1 s.
    ///
    /// [`SimpleElasticAgent`]: super::SimpleElasticAgent
    pub fn monitor_interval(mut self, monitor_interval: Duration) -> Self {
        self.spec.monitor_interval = monitor_interval;
        self
    }

    /// Sets the restarts and the interval of one of torchelastic's generations.
    pub fn defaults(mut self, defaults: Defaults) -> Self {
        self.spec.config.restarts.max_restarts = defaults.max_restarts;
        self.spec.monitor_interval = defaults.monitor_interval;
        self
    }

    /// Sets the role of all workers; the default is `default`.
    pub fn role(mut self, role: impl Into<String>) -> Self {
        self.spec.config.identity.role = role.into();
        self
    }

    /// Adds arguments to the entry point.
    pub fn args<A: Into<OsString>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.spec.entrypoint = self.spec.entrypoint.args(arguments);
        self
    }

    /// Sets the name that all nodes of the job share; the default is `none`.
    pub fn run_id(mut self, run_id: impl Into<String>) -> Self {
        self.spec.config.identity.run_id = RunId::new(run_id);
        self
    }

    /// Adds an exit code after which there is no restart.
    /// A signal counts as its negative number. If a worker exits with this code, and the agent had
    /// not stopped it, the run fails immediately.
    pub fn non_retryable(mut self, code: i32) -> Self {
        self.spec.config.restarts.non_retryable.insert(code);
        self
    }

    /// Sets the address of the workers' store, if this node hosts it.
    /// It replaces [`local_addr`](Self::local_addr), which is the default.
    pub fn master_addr(mut self, address: impl Into<String>) -> Self {
        self.spec.master_addr = Some(address.into());
        self
    }

    /// Sets the address of this node for the other nodes; detected by default.
    /// A single node without a backend uses `127.0.0.1` by default.
    pub fn local_addr(mut self, address: impl Into<String>) -> Self {
        self.spec.config.rendezvous.local_addr = Some(address.into());
        self
    }

    /// Copies teed stdout lines that contain one of these texts to a common file.
    pub fn duplicate_stdout_filters(mut self, needles: Vec<String>) -> Self {
        self.spec.config.logs.stdout_filters = needles;
        self
    }

    /// Copies teed stderr lines that contain one of these texts to a common file.
    pub fn duplicate_stderr_filters(mut self, needles: Vec<String>) -> Self {
        self.spec.config.logs.stderr_filters = needles;
        self
    }

    /// Sets the environment from which workers start, instead of this process's.
    pub fn environment(mut self, environment: BTreeMap<OsString, OsString>) -> Self {
        self.spec.environment = Some(environment);
        self
    }

    /// Adds a handler that receives every event on the thread of the agent.
    /// The handler is a closure or another event sink. It must not block.
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

    /// Sets the event handlers that have names; the default is torchelastic's.
    pub fn event_registry(mut self, registry: EventRegistry) -> Self {
        self.event_registry = registry;
        self
    }

    /// Sets the receiver of a run's metrics, with torchelastic's names.
    /// The default is none.
    pub fn metrics(mut self, registry: MetricsRegistry) -> Self {
        self.metrics = Some(registry);
        self
    }

    /// Binds each worker to processors near its device; the default is no binding.
    /// Applies only to worker processes.
    pub fn numa_binding(mut self, mode: BindingMode) -> Self {
        self.spec.numa_binding = Some(mode);
        self
    }

    /// Checks the specification and returns it.
    ///
    /// # Errors
    ///
    /// [`SpecError`] names the value that is invalid.
    pub fn build(self) -> Result<WorkerSpec, SpecError> {
        let mut spec = self.spec;
        let refused = |why: &str| Err(SpecError::Setting(why.to_owned()));
        if spec.config.identity.local_world_size == 0 {
            return refused("local_world_size is 0: a node has at least one worker");
        }
        if spec.monitor_interval.is_zero() {
            return refused("monitor_interval is 0: it must be positive, such as 100 ms");
        }
        if spec.config.identity.role.is_empty() {
            return refused("the role is empty: give the workers a role, such as 'default'");
        }
        if spec.config.restarts.non_retryable.contains(&0) {
            return refused("exit code 0 means success, so it cannot be a final exit code");
        }
        if spec.entrypoint.name().is_empty() {
            return refused(
                "the entry point is empty: specify a program, a script, a module or a function",
            );
        }
        check_rendezvous(&spec)?;
        let facts = spec.facts();
        let names = if self.event_handler_names.is_empty() {
            "null".to_owned()
        } else {
            self.event_handler_names.join(",")
        };
        let mut sinks: Vec<Box<dyn EventSink + Send>> =
            vec![Box::new(InfoLines::new(&facts, &names))];
        for name in self.event_handler_names {
            let handler = self.event_registry.create(&name, &facts).ok_or_else(|| {
                let known: Vec<&str> = self.event_registry.names().collect();
                SpecError::Setting(format!(
                    "event handler '{name}' does not exist: the registry has {}",
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
            "this job can have other nodes"
        } else if !spec.config.rendezvous.share_store {
            "in this job, the worker with rank 0 hosts the store"
        } else {
            return Ok(());
        };
        return Err(SpecError::Setting(format!(
            "a kept socket for the master port can only be used if the agent of a single node \
             hosts the workers' store; {why}"
        )));
    }
    Err(SpecError::Setting(match &spec.config.rendezvous.plan {
        RendezvousPlan::Static {
            node_rank, nodes, ..
        } if node_rank.0 >= *nodes => format!(
            "the node rank is {node_rank}, but must be from 0 to {}",
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
                "rendezvous backend '{}' does not exist: the registry has {:?}",
                parameters.backend, spec.config.rendezvous.backends
            )
        }
        RendezvousPlan::Dynamic { parameters }
            if parameters.run_id != spec.config.identity.run_id.as_str() =>
        {
            format!(
                "the rendezvous is for run '{}', but the workers belong to run '{}'",
                parameters.run_id, spec.config.identity.run_id
            )
        }
        _ => return Ok(()),
    }))
}
