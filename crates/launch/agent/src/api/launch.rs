//! Shortest way to run workers: a configuration, an entry point and the values.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdzv_agent_proto::topology::BindingMode;
use rdzv_core::endpoint::Endpoint;
use rdzv_core::rank::{GroupRank, Rank};
use rdzv_rendezvous::{RendezvousError, RendezvousParameters, StaticRendezvous};
use serde_json::Value;
use thiserror::Error;

use super::{
    Defaults, ElasticAgent, EventHandler, LAUNCH_ROLE, LocalElasticAgent, RunError, SpecError,
    WorkerEntrypoint, WorkerGroupFailure, WorkerSpec, WorkerSpecBuilder,
};
use crate::config::{LogBase, LogPlan, RendezvousPlan};
use crate::observe::EventSink;

/// Port of a static endpoint without a port.
const STATIC_PORT: u16 = 29_500;

/// Configuration of a launch on this node, like torchelastic's `LaunchConfig`.
///
/// The defaults are torchelastic's, with one exception: the backend is `c10d` instead of `etcd`,
/// and a single node needs no backend.
///
/// | field | default |
/// |---|---|
/// | `role` | `default_role` (in an agent and on the command line: `default`) |
/// | `run_id` | empty: a random one, with a warning if there may be other nodes |
/// | `rdzv_backend` | `c10d` (torchelastic: `etcd`) |
/// | `rdzv_endpoint` | empty |
/// | `rdzv_config` | `timeout=900` |
/// | `max_restarts`, `monitor_interval` | 3, 0.1 s |
/// | `shutdown_timeout` | 30 s |
/// | `logs` | on the console |
/// | `event_log_handler` | `null` |
#[derive(Clone)]
pub struct LaunchConfig {
    /// Minimum number of nodes.
    pub min_nodes: u32,
    /// Maximum number of nodes.
    pub max_nodes: u32,
    /// Number of workers on each node.
    pub local_world_size: u32,
    /// Name that all nodes of the job share.
    pub run_id: String,
    /// Role of the workers.
    pub role: String,
    /// Rendezvous backend.
    pub rdzv_backend: String,
    /// Endpoint of the rendezvous.
    pub rdzv_endpoint: String,
    /// Options of the backend.
    pub rdzv_config: BTreeMap<String, String>,
    /// Maximum number of restarts of the group after failures.
    pub max_restarts: u32,
    /// Longest time between two polls of a supervisor; unused for processes.
    pub monitor_interval: Duration,
    /// Time that workers have between the closing signal and SIGKILL.
    pub shutdown_timeout: Duration,
    /// Address of this node that other nodes should use.
    pub local_addr: Option<String>,
    /// Numbers of the signals on which the agent stops the run.
    pub signals: Vec<i32>,
    /// Destinations of the workers' output.
    pub logs: LogPlan,
    /// `true` gives every worker local rank 0 and only its own device.
    pub virtual_local_rank: bool,
    /// Binding of each worker to processors near its device.
    pub numa_binding: Option<BindingMode>,
    /// Destination of events, by name: `null`, `console`, `dynamic_rendezvous`.
    pub event_log_handler: String,
    /// Additional handlers that receive every event.
    pub event_handlers: Vec<EventHandler>,
}

impl std::fmt::Debug for LaunchConfig {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("LaunchConfig")
            .field("nodes", &(self.min_nodes, self.max_nodes))
            .field("local_world_size", &self.local_world_size)
            .field("run_id", &self.run_id)
            .field("role", &self.role)
            .field("rdzv_backend", &self.rdzv_backend)
            .field("rdzv_endpoint", &self.rdzv_endpoint)
            .finish_non_exhaustive()
    }
}

impl LaunchConfig {
    /// Returns the defaults for `nodes` nodes with `local_world_size` workers each.
    pub fn new(nodes: u32, local_world_size: u32) -> Self {
        Self {
            min_nodes: nodes,
            max_nodes: nodes,
            local_world_size,
            run_id: String::new(),
            role: LAUNCH_ROLE.to_owned(),
            rdzv_backend: "c10d".to_owned(),
            rdzv_endpoint: String::new(),
            rdzv_config: BTreeMap::from([("timeout".to_owned(), "900".to_owned())]),
            max_restarts: Defaults::LIBRARY.max_restarts,
            monitor_interval: Defaults::LIBRARY.monitor_interval,
            shutdown_timeout: Duration::from_secs(30),
            local_addr: None,
            signals: vec![15, 2, 1, 3],
            logs: LogPlan::new(LogBase::Temporary(crate::host::own_temporary_directory())),
            virtual_local_rank: false,
            numa_binding: None,
            event_log_handler: "null".to_owned(),
            event_handlers: Vec::new(),
        }
    }

    /// Adds a handler that receives every event.
    pub fn event_handler(&mut self, handler: impl EventSink + Send + 'static) -> &mut Self {
        self.event_handlers
            .push(Arc::new(Mutex::new(Box::new(handler))));
        self
    }

    /// Returns the specification of this node's workers.
    ///
    /// # Errors
    ///
    /// [`SpecError`] names the value that is invalid.
    pub fn spec(&self, entrypoint: WorkerEntrypoint) -> Result<WorkerSpec, SpecError> {
        let mut spec = self.builder(entrypoint)?.build()?;
        spec.event_handlers
            .extend(self.event_handlers.iter().cloned());
        Ok(spec)
    }

    /// Returns a builder of the same specification, without `event_handlers`.
    ///
    /// # Errors
    ///
    /// [`SpecError`] names the value that is invalid.
    pub fn builder(&self, entrypoint: WorkerEntrypoint) -> Result<WorkerSpecBuilder, SpecError> {
        let alone = self.max_nodes == 1 && self.rdzv_endpoint.is_empty();
        let run_id = match &*self.run_id {
            "" => random_run_id(alone),
            given => given.to_owned(),
        };
        let rendezvous = if alone && self.rdzv_backend == "c10d" {
            RendezvousPlan::Local
        } else {
            self.rendezvous(&run_id).map_err(refused)?
        };
        let mut builder = WorkerSpec::builder(entrypoint)
            .role(self.role.clone())
            .run_id(run_id)
            .local_world_size(self.local_world_size)
            .rendezvous(rendezvous)
            .max_restarts(self.max_restarts)
            .monitor_interval(self.monitor_interval)
            .shutdown_timeout(self.shutdown_timeout)
            .signals(self.signals.clone())
            .virtual_local_rank(self.virtual_local_rank)
            .event_log_handler(&self.event_log_handler)
            .logs(self.logs.clone());
        if let Some(mode) = self.numa_binding {
            builder = builder.numa_binding(mode);
        }
        Ok(builder.configure(|config| config.rendezvous.local_addr.clone_from(&self.local_addr)))
    }

    fn rendezvous(&self, run_id: &str) -> Result<RendezvousPlan, RendezvousError> {
        let mut parameters = RendezvousParameters::new(
            &self.rdzv_backend,
            &self.rdzv_endpoint,
            run_id,
            self.min_nodes,
            self.max_nodes,
            self.rdzv_config.clone(),
        )?;
        parameters.local_addr.clone_from(&self.local_addr);
        if self.rdzv_backend == StaticRendezvous::NAME {
            return fixed(&parameters);
        }
        Ok(RendezvousPlan::Dynamic { parameters })
    }
}

/// Returns the plan of a static rendezvous.
/// The option `rank` is the rank of this node; node 0 listens at the endpoint.
fn fixed(parameters: &RendezvousParameters) -> Result<RendezvousPlan, RendezvousError> {
    let wrong = |what: &str| RendezvousError::Argument(what.to_owned());
    let number = |key| {
        parameters
            .config
            .get_as_int(key)
            .map(|number| number.and_then(unsigned))
    };
    let node_rank = number("rank")?.ok_or_else(|| {
        wrong("static rendezvous needs the option rank: the rank of this node, from 0")
    })?;
    let endpoint = parameters.endpoint.trim();
    if endpoint.is_empty() {
        return Err(wrong(
            "static rendezvous needs an endpoint: the address on which node 0 listens",
        ));
    }
    let timeout = number("timeout")?
        .ok_or_else(|| wrong("timeout must be a non-negative number of seconds"))?;
    Ok(RendezvousPlan::Static {
        endpoint: Endpoint::parse(endpoint, STATIC_PORT)
            .map_err(|error| wrong(&format!("endpoint '{endpoint}': {error}")))?,
        node_rank: GroupRank(node_rank),
        nodes: parameters.max_nodes,
        timeout: Duration::from_secs(timeout.into()),
    })
}

fn unsigned(number: i64) -> Option<u32> {
    u32::try_from(number).ok()
}

fn refused(error: RendezvousError) -> SpecError {
    SpecError::Setting(error.to_string())
}

/// Returns a random UUID (version 4) as a decimal number, like torchelastic.
fn random_run_id(alone: bool) -> String {
    let (version, variant) = (0x4_u128 << 76, 0x2_u128 << 62);
    let random = fastrand::u128(..) & !(0xf << 76) & !(0x3 << 62);
    let run_id = (random | version | variant).to_string();
    if !alone {
        tracing::warn!(
            "config has no run_id, generated a random run_id: {run_id}; other nodes cannot know it"
        );
    }
    run_id
}

/// Reason why a launch failed, so that it returns no values.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// Workers failed.
    #[error(transparent)]
    WorkersFailed(#[from] WorkerGroupFailure),
    /// The agent could not do its work.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl From<SpecError> for LaunchError {
    fn from(error: SpecError) -> Self {
        Self::Run(error.into())
    }
}

/// Runs `entrypoint` in the workers of this node and returns their values.
/// The keys are global ranks.
/// Corresponds to torchelastic's `elastic_launch(config, entrypoint)(…)`.
///
/// Only functions return values; for other entry points the map is empty. The restrictions on the
/// process of a [`LocalElasticAgent`] apply here too.
///
/// # Errors
///
/// [`LaunchError`] if the configuration is invalid, workers fail, or the agent cannot continue.
pub fn launch(
    config: &LaunchConfig,
    entrypoint: WorkerEntrypoint,
) -> Result<BTreeMap<Rank, Value>, LaunchError> {
    let name = entrypoint.name();
    let mut agent = LocalElasticAgent::new(config.spec(entrypoint)?);
    let result = agent.run(&config.role)?;
    Ok(result.into_values(&name)?)
}
