//! What the workers of one node are.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdzv_agent_proto::topology::{BindingMode, VisibleLists};
use rdzv_core::env::{CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES};
use rdzv_core::ident::RunId;
use thiserror::Error;

use super::{DEFAULT_ROLE, Defaults, WorkerEntrypoint, WorkerSpecBuilder};
use crate::observe::{EventSink, RunFacts};
use crate::processes::signal_name;
use crate::topology::{Hardware, PlacementError};
use crate::{AgentConfig, Entrypoint, LogBase, LogPlan, RendezvousPlan};

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
        let config = AgentConfig::builder(no_command(entrypoint.name()))
            .role(DEFAULT_ROLE.to_owned())
            .max_restarts(Defaults::LIBRARY.max_restarts)
            .logs(LogPlan::new(LogBase::Temporary(std::env::temp_dir())));
        WorkerSpecBuilder::new(Self {
            entrypoint,
            config: config.build(),
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

    /// What reports call the entry point.
    pub fn entrypoint_name(&self) -> String {
        self.entrypoint.name()
    }

    /// The label of all its workers.
    pub fn role(&self) -> &str {
        &self.config.role
    }

    /// How many workers the node starts.
    pub fn local_world_size(&self) -> u32 {
        self.config.local_world_size
    }

    /// The name that all nodes of the job share.
    pub fn run_id(&self) -> &RunId {
        &self.config.run_id
    }

    /// How often the group may be restarted after a failure.
    pub fn max_restarts(&self) -> u32 {
        self.config.max_restarts
    }

    /// How often a supervisor is asked.
    pub fn monitor_interval(&self) -> Duration {
        self.monitor_interval
    }

    /// How long the node rests between the end of its workers and the next rendezvous.
    pub fn settle_delay(&self) -> Duration {
        self.config.settle_delay
    }

    /// The exit codes (minus the number for signals) after which no restart is tried.
    pub fn non_retryable(&self) -> &BTreeSet<i32> {
        &self.config.non_retryable
    }

    /// How the nodes find one another.
    pub fn rendezvous(&self) -> &RendezvousPlan {
        &self.config.rendezvous
    }

    /// The configuration of an agent with processes.
    pub(super) fn process_config(&self) -> Result<AgentConfig, SpecError> {
        let mut config = self.config();
        config.entrypoint = self.entrypoint.resolve(&config.environment)?;
        if let Some(mode) = self.numa_binding {
            let lists = visible_lists(&config.environment);
            let bound = Hardware::of_this_machine().bind(mode, &lists, self.local_world_size())?;
            config.processors = bound
                .into_iter()
                .map(|binding| binding.processors)
                .collect();
        }
        Ok(config)
    }

    /// The configuration of an agent whose workers are no processes of ours.
    pub(super) fn config(&self) -> AgentConfig {
        let mut config = self.config.clone();
        config.environment = match &self.environment {
            Some(given) => given.clone(),
            None => std::env::vars_os().collect(),
        };
        let names = config.signals.iter().map(|number| signal_name(*number));
        config.signals_text = names.collect::<Vec<_>>().join(",");
        // Workers meet at the address of the agent with group rank 0.
        config.local_addr = self.master_addr.clone().or(config.local_addr);
        if let RendezvousPlan::Dynamic { parameters } = &mut config.rendezvous {
            let given = config.local_addr.clone();
            parameters.local_addr = given.or_else(|| parameters.local_addr.take());
        }
        config.rendezvous_backend = self.backend();
        config
    }

    /// What events and metrics of its runs have in common.
    pub(super) fn facts(&self) -> RunFacts {
        RunFacts {
            backend: self.backend(),
            entry_point: self.entrypoint.name(),
            ..RunFacts::new(&self.config)
        }
    }

    fn backend(&self) -> String {
        match &self.config.rendezvous {
            RendezvousPlan::Local => "c10d".to_owned(),
            RendezvousPlan::Static { .. } => "static".to_owned(),
            RendezvousPlan::Dynamic { parameters } => parameters.backend.clone(),
        }
    }
}

/// The entry point of workers that are no processes of ours.
fn no_command(name: String) -> Entrypoint {
    Entrypoint {
        program: OsString::new(),
        arguments: Vec::new(),
        name,
    }
}

fn visible_lists(environment: &BTreeMap<OsString, OsString>) -> VisibleLists {
    let text = |name: &str| {
        let held = environment.get(OsStr::new(name))?;
        Some(held.to_string_lossy().into_owned())
    };
    VisibleLists {
        cuda: text(CUDA_VISIBLE_DEVICES),
        hip: text(HIP_VISIBLE_DEVICES),
    }
}

impl fmt::Debug for WorkerSpec {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("WorkerSpec")
            .field("entrypoint", &self.entrypoint)
            .field("role", &self.config.role)
            .field("local_world_size", &self.config.local_world_size)
            .field("run_id", &self.config.run_id)
            .field("max_restarts", &self.config.max_restarts)
            .field("rendezvous", &self.config.rendezvous)
            .finish_non_exhaustive()
    }
}

/// A specification that cannot be used.
#[derive(Debug, Error)]
pub enum SpecError {
    /// There would be no workers.
    #[error("local_world_size is 0: a node has at least one worker")]
    NoWorkers,
    /// There would be no time between two looks.
    #[error("monitor_interval is 0: it has to be more, such as 100 ms")]
    NoInterval,
    /// A role without a name.
    #[error("the role is empty: give the workers one, such as '{DEFAULT_ROLE}'")]
    NoRole,
    /// The entry point names nothing.
    #[error("the entry point is empty: name a program, a script, a module or a function")]
    NoEntrypoint,
    /// A socket was given where none can be used.
    #[error(
        "a kept socket for the master port can be used where the agent of a single node hosts the \
         workers' store; {0}"
    )]
    KeptSocket(&'static str),
    /// A success cannot be a failure.
    #[error("exit code 0 is a success, so it cannot be among those that are not retried")]
    RetriedSuccess,
    /// The text says what is wrong with the rendezvous.
    #[error("{0}")]
    Rendezvous(String),
    /// There is no Python for a script or module.
    #[error(
        "no Python interpreter: none in VIRTUAL_ENV and no python3 or python in PATH; activate an \
         environment, set PYTHON_EXEC, or use a command"
    )]
    NoPython,
    /// Workers cannot be bound to processors.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// An event handler was named that there is not.
    #[error("there is no event handler '{name}': the registry has {known}")]
    NoEventHandler {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A function runs in a copy of this program, which was not found.
    #[error("find this program, to run a function in a copy of it: {0}")]
    OwnProgram(#[source] io::Error),
}
