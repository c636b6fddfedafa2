//! The configuration of an agent, fully resolved: nothing in here needs the command line or the
//! environment again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::health::Liveness;
use rdzv_agent_proto::group::{
    GroupIdentity, GroupSpec, Master, PreemptionPlan, RestartOptions, Round, StopOptions,
    WorkerRanks, barrier, environment,
};
use rdzv_agent_proto::topology::{CpuList, VisibleLists};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;
use rdzv_core::rank::{Assignment, GroupRank, LocalRank};
use rdzv_rendezvous::dynamic::C10dRendezvous;
use rdzv_rendezvous::{BackendRegistry, Kept, RendezvousParameters, StaticRendezvous};
use rdzv_store::StorePolicy;

use crate::AgentError;
use crate::hang::HangPlan;

/// Configuration of an agent: one run of workers on this node. The sections are those of
/// the flags; the default is one worker on one node.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// Command that each worker executes.
    pub entrypoint: Entrypoint,
    /// Environment that workers start from, before the variables of their ranks; empty.
    pub environment: BTreeMap<OsString, OsString>,
    /// Name and size of the worker group.
    pub identity: GroupIdentity,
    /// Failures that lead to another attempt, and the time before it.
    pub restarts: RestartOptions,
    /// Ends of the workers that the agent causes.
    pub stop: StopOptions,
    /// Notice to workers that the scheduler will take their node away; none.
    pub preemption: Option<PreemptionPlan>,
    /// How this node finds the others, and the store of the workers.
    pub rendezvous: RendezvousOptions,
    /// Part of this machine that each worker gets.
    pub placement: PlacementOptions,
    /// Destination of the workers' output; the console, without files.
    pub logs: LogPlan,
    /// Detection of workers that hang, and the action that follows; none.
    pub hang: HangPlan,
    /// Observation of the agent and its workers by others.
    pub observe: ObserveOptions,
}

/// How a node finds the others, and the store of the workers.
#[derive(Debug, Clone)]
pub struct RendezvousOptions {
    /// How the nodes find one another; there is only this one.
    pub plan: RendezvousPlan,
    /// Kinds of dynamic rendezvous by name; those of rdzv.
    pub backends: BackendRegistry,
    /// Command that has to succeed before this node joins a round; none.
    pub node_check: Option<NodeCheckPlan>,
    /// `true` if the job needs this node, so that a run that ends without it belongs to another job;
    /// `false`.
    pub is_needed: bool,
    /// Address of this node that others should use; `None` lets the agent find it.
    pub local_addr: Option<String>,
    /// Port of the workers' store; a free one.
    pub master_port: MasterPort,
    /// `false` leaves the workers' store to the worker with rank 0
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`); `true`. Static rendezvous always shares; whether
    /// another one can is its own business.
    pub share_store: bool,
    /// Policy of the workers' store if this node is alone or the rendezvous is static; other backends
    /// have it in their parameters.
    pub store_policy: StorePolicy,
    /// `true` computes ranks without an exchange (`TORCH_ELASTIC_WORKER_IDENTICAL=1`); `false`.
    pub identical_workers: bool,
    /// Time for which a node whose workers have succeeded waits for the others; 300 s.
    pub exit_barrier_timeout: Duration,
    /// Number of restarts in a row of a killed agent that dies within 10 s of its start; 0 disables
    /// them. Only for an agent that a keeper has started ([`keep`](crate::keep)).
    pub agent_restarts: u32,
    /// Sockets and record that outlive this agent then; [`run`](crate::run()) fills it in.
    pub kept: Option<Kept>,
}

impl Default for RendezvousOptions {
    fn default() -> Self {
        Self {
            plan: RendezvousPlan::Local,
            backends: BackendRegistry::with_defaults(),
            node_check: None,
            is_needed: false,
            local_addr: None,
            master_port: MasterPort::Free,
            share_store: true,
            store_policy: StorePolicy::default(),
            identical_workers: false,
            exit_barrier_timeout: barrier::EXIT_BARRIER_TIMEOUT,
            agent_restarts: 0,
            kept: None,
        }
    }
}

/// Part of a machine that each worker gets.
#[derive(Debug, Clone, Default)]
pub struct PlacementOptions {
    /// Processors that each worker may use, by local rank (`--numa-binding`; the result of
    /// [`Hardware::bind`](crate::topology::Hardware::bind)). Workers beyond the list may use all
    /// processors of the agent; an empty list binds no worker.
    pub processors: Vec<CpuList>,
    /// `true` gives every worker local rank 0 and one device; `false`.
    pub virtual_local_rank: bool,
    /// Number of files that workers may open, if that is less than the agent may (the soft limit);
    /// `None` leaves it.
    pub open_files: Option<u64>,
}

/// Observation of an agent and its workers by others.
#[derive(Debug, Clone, Default)]
pub struct ObserveOptions {
    /// Watch over the agent's own threads; a clone of it answers other threads.
    pub liveness: Liveness,
    /// Private directory for the workers' sockets (`TORCH_WORKER_SERVER_SOCKET`); `None` leaves the
    /// variable as it is. Its path is short: that of a socket has at most 107 bytes.
    pub worker_sockets: Option<PathBuf>,
}

impl AgentConfig {
    /// The path of a worker's socket, if workers have any.
    pub fn worker_socket(&self, local_rank: LocalRank) -> Option<PathBuf> {
        let directory = self.observe.worker_sockets.as_ref()?;
        Some(directory.join(local_rank.to_string()))
    }

    /// A variable that workers start from.
    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let value = self.environment.get(OsStr::new(name))?;
        Some(value.to_string_lossy().into_owned())
    }

    /// What restricts the devices that workers see.
    pub(crate) fn visible_lists(&self) -> VisibleLists {
        VisibleLists {
            cuda: self.variable(env::CUDA_VISIBLE_DEVICES),
            hip: self.variable(env::HIP_VISIBLE_DEVICES),
        }
    }

    /// The part that the worker-group machine has to know.
    pub(crate) fn group_spec(&self) -> GroupSpec {
        let plan = &self.rendezvous.plan;
        let dynamic = matches!(plan, RendezvousPlan::Dynamic { .. });
        let kept = self.rendezvous.kept.as_ref();
        GroupSpec {
            identity: self.identity.clone(),
            restarts: self.restarts.clone(),
            stop: self.stop.clone(),
            preemption: self.preemption.clone(),
            restarts_used: kept.map_or(0, |kept| kept.note().restarts_used),
            // A dynamic rendezvous provides an empty store for every round.
            purge_store: !dynamic && plan.nodes() == 1,
            dynamic,
            nccl_error_handling: self.variable(env::TORCH_NCCL_ASYNC_ERROR_HANDLING),
            virtual_local_rank: self
                .placement
                .virtual_local_rank
                .then(|| self.visible_lists()),
        }
    }
}

/// The check of a node before it joins a round, the first one and every other.
///
/// A node that fails it leaves the others ([`AgentError::NodeCheck`]), which go on
/// without it, or with a node in reserve.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCheckPlan {
    /// A command line for `sh`.
    pub command: String,
    /// The time in which it has to end. Then it is killed, and has failed.
    pub timeout: Duration,
}

/// The port of the workers' store.
#[derive(Debug, Clone, Default)]
pub enum MasterPort {
    /// One that is free. The agent listens there from then on (or keeps it for the worker that
    /// hosts the store), so nobody else can take it meanwhile.
    #[default]
    Free,
    /// This one. With static rendezvous the endpoint's port counts, whatever stands here.
    Fixed(u16),
    /// The port of this bound socket, which the agent listens on. Only for one node.
    Kept(Arc<TcpListener>),
}

/// What a worker executes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entrypoint {
    /// The program; looked up in `PATH` if it has no slash.
    pub program: OsString,
    /// Its arguments, before `${local_rank}` is replaced.
    pub arguments: Vec<OsString>,
    /// What the failure report calls it: script, module or program.
    pub name: String,
}

/// How the nodes of the job find one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousPlan {
    /// One node: nobody to find. The agent hosts the workers' store on a free port.
    Local,
    /// Fixed ranks: node 0 hosts one store at the endpoint, for agents and workers.
    Static {
        /// Where node 0 listens.
        endpoint: Endpoint,
        /// This node's rank.
        node_rank: GroupRank,
        /// Number of nodes.
        nodes: u32,
        /// How long to wait for the others.
        timeout: Duration,
    },
    /// Nodes come and go: a backend of the registry says who takes part, round after round.
    Dynamic {
        /// Which backend, where, and for how many nodes. Without a `local_addr` the backend finds
        /// out how others can reach this node.
        parameters: RendezvousParameters,
    },
}

impl RendezvousPlan {
    /// How many nodes take part at most.
    pub fn nodes(&self) -> u32 {
        match self {
            Self::Local => 1,
            Self::Static { nodes, .. } => *nodes,
            Self::Dynamic { parameters } => parameters.max_nodes,
        }
    }

    /// Name of the rendezvous backend, as events show it.
    pub fn backend(&self) -> &str {
        match self {
            Self::Local => C10dRendezvous::NAME,
            Self::Static { .. } => StaticRendezvous::NAME,
            Self::Dynamic { parameters } => &parameters.backend,
        }
    }
}

/// Which of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamSelection {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// A selection of streams per local rank (`-r`, `-t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankSelection {
    /// The same for every rank.
    All(StreamSelection),
    /// By rank; ranks not named get nothing.
    Each(BTreeMap<u32, StreamSelection>),
}

impl RankSelection {
    /// What is selected for one rank.
    pub fn of(&self, local_rank: u32) -> StreamSelection {
        match self {
            Self::All(selection) => *selection,
            Self::Each(map) => map.get(&local_rank).copied().unwrap_or_default(),
        }
    }
}

/// Where the workers' output goes.
#[derive(Debug, Clone)]
pub struct LogPlan {
    /// The directory that run directories are made in.
    pub base: LogBase,
    /// Streams that go to files only.
    pub redirects: RankSelection,
    /// Streams that go to files and, with a prefix, to the console.
    pub tee: RankSelection,
    /// Local ranks whose output may reach the console; `None` = all. Of the others, what goes to no
    /// file either is kept up to its last 64 KiB, and shown if the worker fails.
    pub console_ranks: Option<BTreeSet<u32>>,
    /// Needles: teed stdout lines that contain one are copied to `filtered_stdout.log`.
    pub stdout_filters: Vec<String>,
    /// Needles: teed stderr lines that contain one are copied to `filtered_stderr.log`.
    pub stderr_filters: Vec<String>,
    /// Template of the console prefix, macros not yet replaced.
    pub prefix_template: String,
    /// True makes one line of equal teed lines of several workers that come within 100 ms; macros
    /// of the prefix then name all their ranks (`0-3,5`). Other lines come up to 100 ms later.
    pub collapse: bool,
    /// `true` keeps the last lines of workers that share the agent's stderr for the failure report:
    /// unless it is a terminal, they then write to it through a pipe. `true`.
    pub capture_stderr: bool,
    /// The same on a terminal: workers that would share it get a pseudo-terminal in place of their
    /// stderr, from which the bytes go to it unchanged. `false`.
    pub capture_terminal: bool,
}

impl LogPlan {
    /// Everything goes to the console as it is; in the directory are the error files of workers.
    pub fn new(base: LogBase) -> Self {
        Self {
            base,
            redirects: RankSelection::All(StreamSelection::default()),
            tee: RankSelection::All(StreamSelection::default()),
            console_ranks: None,
            stdout_filters: Vec::new(),
            stderr_filters: Vec::new(),
            prefix_template: "[${role_name}${local_rank}]:".to_owned(),
            collapse: false,
            capture_stderr: true,
            capture_terminal: false,
        }
    }
}

impl Default for LogPlan {
    fn default() -> Self {
        Self::new(LogBase::Discard)
    }
}

/// The directory that run directories are made in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogBase {
    /// `--log-dir`, made absolute.
    Directory(PathBuf),
    /// A new directory `torchelastic_…` below this one (`TMPDIR`), removed at the end if it holds no output.
    Temporary(PathBuf),
    /// `--log-dir /dev/null`: no files at all; everything goes to the console.
    Discard,
}

/// One worker as it would be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerPreview {
    /// Its place.
    pub place: WorkerRanks,
    /// Its arguments, macros replaced.
    pub arguments: Vec<OsString>,
    /// The variables that it gets beyond the environment of the configuration, except
    /// `TORCHELASTIC_ERROR_FILE`, whose directory is made when workers start.
    pub variables: Vec<(&'static str, String)>,
}

/// The workers of this node in the first attempt, if this node came first in a round of `nodes` equal
/// ones whose workers meet at `master`.
///
/// # Errors
///
/// If there are fewer devices than workers with `--virtual-local-rank`.
pub fn preview(
    config: &AgentConfig,
    nodes: u32,
    group_rank: GroupRank,
    master: Master,
) -> Result<Vec<WorkerPreview>, AgentError> {
    let size = config.identity.local_world_size;
    let (world, first) = (
        nodes.saturating_mul(size),
        group_rank.0.saturating_mul(size),
    );
    let round = Round {
        number: 0,
        group_rank,
        group_world_size: nodes,
        master,
        losses_known_within: Duration::ZERO,
    };
    let spec = config.group_spec();
    WorkerRanks::of_node(Assignment::from((first, world, first, world)), size)
        .into_iter()
        .map(|place| {
            let variables = environment::variables(&spec, &round, &place, 0);
            Ok(WorkerPreview {
                arguments: environment::arguments(&config.entrypoint.arguments, place.local_rank),
                variables: variables.map_err(AgentError::Plan)?,
                place,
            })
        })
        .collect()
}
