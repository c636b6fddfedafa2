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
use crate::HangPlan;
use crate::host;
use crate::observe::{EventSink, RunFacts};
use crate::topology::{Hardware, PlacementError};
use crate::{Entrypoint, LaunchPlan, LogBase, LogPlan, MasterPort, RendezvousPlan};

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
    pub(super) role: String,
    pub(super) local_world_size: u32,
    pub(super) run_id: RunId,
    pub(super) max_restarts: u32,
    pub(super) monitor_interval: Duration,
    pub(super) settle_delay: Duration,
    pub(super) non_retryable: BTreeSet<i32>,
    pub(super) master_addr: Option<String>,
    pub(super) master_port: MasterPort,
    pub(super) local_addr: Option<String>,
    pub(super) share_store: bool,
    pub(super) identical_workers: bool,
    pub(super) rendezvous: RendezvousPlan,
    pub(super) backends: rdzv_rendezvous::BackendRegistry,
    pub(super) shutdown_timeout: Duration,
    pub(super) signals: Vec<i32>,
    pub(super) logs: LogPlan,
    pub(super) virtual_local_rank: bool,
    pub(super) numa_binding: Option<BindingMode>,
    pub(super) hang: HangPlan,
    pub(super) environment: Option<BTreeMap<OsString, OsString>>,
    pub(super) event_handlers: Vec<EventHandler>,
}

impl WorkerSpec {
    /// Begins a specification; everything but the entry point has a default:
    /// [`Defaults::LIBRARY`], role `default`, one worker, one node, output on the console.
    pub fn builder(entrypoint: WorkerEntrypoint) -> WorkerSpecBuilder {
        let plain = LaunchPlan::new(Entrypoint {
            program: OsString::new(),
            arguments: Vec::new(),
            name: String::new(),
        });
        WorkerSpecBuilder::new(Self {
            entrypoint,
            role: DEFAULT_ROLE.to_owned(),
            local_world_size: 1,
            run_id: plain.run_id,
            max_restarts: Defaults::LIBRARY.max_restarts,
            monitor_interval: Defaults::LIBRARY.monitor_interval,
            settle_delay: Duration::ZERO,
            non_retryable: BTreeSet::new(),
            master_addr: None,
            master_port: plain.master_port,
            local_addr: None,
            share_store: plain.share_store,
            identical_workers: plain.identical_workers,
            rendezvous: plain.rendezvous,
            backends: plain.backends,
            shutdown_timeout: plain.shutdown_timeout,
            signals: plain.signals,
            logs: LogPlan::new(LogBase::Temporary(std::env::temp_dir())),
            virtual_local_rank: false,
            numa_binding: None,
            hang: plain.hang,
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
        &self.role
    }

    /// How many workers the node starts.
    pub fn local_world_size(&self) -> u32 {
        self.local_world_size
    }

    /// The name that all nodes of the job share.
    pub fn run_id(&self) -> &RunId {
        &self.run_id
    }

    /// How often the group may be restarted after a failure.
    pub fn max_restarts(&self) -> u32 {
        self.max_restarts
    }

    /// How often a supervisor is asked.
    pub fn monitor_interval(&self) -> Duration {
        self.monitor_interval
    }

    /// How long the node rests between the end of its workers and the next rendezvous.
    pub fn settle_delay(&self) -> Duration {
        self.settle_delay
    }

    /// The exit codes (minus the number for signals) after which no restart is tried.
    pub fn non_retryable(&self) -> &BTreeSet<i32> {
        &self.non_retryable
    }

    /// How the nodes find one another.
    pub fn rendezvous(&self) -> &RendezvousPlan {
        &self.rendezvous
    }

    /// The plan that says the same in the agent's words.
    pub(super) fn plan(&self) -> Result<LaunchPlan, SpecError> {
        let mut plan = self.plan_without_command();
        plan.entrypoint = self.entrypoint.resolve(&plan.environment)?;
        if let Some(mode) = self.numa_binding {
            let lists = visible_lists(&plan.environment);
            let bound = Hardware::of_this_machine().bind(mode, &lists, self.local_world_size)?;
            plan.processors = bound
                .into_iter()
                .map(|binding| binding.processors)
                .collect();
        }
        Ok(plan)
    }

    /// The same for workers that are no processes of ours.
    pub(super) fn plan_without_command(&self) -> LaunchPlan {
        let environment = match &self.environment {
            Some(given) => given.clone(),
            None => std::env::vars_os().collect(),
        };
        let entrypoint = Entrypoint {
            program: OsString::new(),
            arguments: Vec::new(),
            name: self.entrypoint.name(),
        };
        let signals_text: Vec<String> = self
            .signals
            .iter()
            .map(|number| crate::processes::signal_name(*number))
            .collect();
        let mut rendezvous = self.rendezvous.clone();
        if let RendezvousPlan::Dynamic { parameters } = &mut rendezvous {
            parameters.local_addr = self.address().or_else(|| parameters.local_addr.take());
        }
        LaunchPlan {
            role: self.role.clone(),
            run_id: self.run_id.clone(),
            local_world_size: self.local_world_size,
            rendezvous,
            backends: self.backends.clone(),
            max_restarts: self.max_restarts,
            shutdown_timeout: self.shutdown_timeout,
            settle_delay: self.settle_delay,
            non_retryable: self.non_retryable.clone(),
            signals: self.signals.clone(),
            signals_text: signals_text.join(","),
            virtual_local_rank: self.virtual_local_rank,
            share_store: self.share_store,
            local_addr: self.address(),
            identical_workers: self.identical_workers,
            logs: self.logs.clone(),
            environment,
            rendezvous_backend: self.backend(),
            master_port: self.master_port.clone(),
            hang: self.hang.clone(),
            ..LaunchPlan::new(entrypoint)
        }
    }

    /// What events and metrics of its runs have in common.
    pub(super) fn facts(&self) -> RunFacts {
        RunFacts {
            run_id: self.run_id.to_string(),
            role: self.role.clone(),
            host: host::full_name(),
            backend: self.backend(),
            entry_point: self.entrypoint.name(),
            max_restarts: self.max_restarts,
            local_world_size: self.local_world_size,
        }
    }

    fn backend(&self) -> String {
        match &self.rendezvous {
            RendezvousPlan::Local => "c10d".to_owned(),
            RendezvousPlan::Static { .. } => "static".to_owned(),
            RendezvousPlan::Dynamic { parameters } => parameters.backend.clone(),
        }
    }

    /// The address that others should use for this node: workers meet at that of the agent with
    /// group rank 0.
    fn address(&self) -> Option<String> {
        self.master_addr.clone().or_else(|| self.local_addr.clone())
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
            .field("role", &self.role)
            .field("local_world_size", &self.local_world_size)
            .field("run_id", &self.run_id)
            .field("max_restarts", &self.max_restarts)
            .field("rendezvous", &self.rendezvous)
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
