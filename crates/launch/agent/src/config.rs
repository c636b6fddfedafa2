//! Resolved configuration of an agent, in sections.
//!
//! The agent reads no further settings from the command line or the environment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::GroupSpec;
use rdzv_agent_proto::topology::{CpuList, VisibleLists};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;
use rdzv_core::rank::{GroupRank, LocalRank};
use rdzv_core::rules::Rules;
use rdzv_rendezvous::dynamic::C10dRendezvous;
use rdzv_rendezvous::{BackendRegistry, Kept, RendezvousParameters, StaticRendezvous};
use rdzv_store::StorePolicy;

use crate::beats::Beats;
use crate::health::Liveness;

pub use crate::hang::{HangAction, HangPlan, HeartbeatPlan};
pub use rdzv_agent_proto::group::{GroupIdentity, PreemptionPlan, RestartOptions, StopOptions};

/// Configuration of an agent: one run of workers on this node.
/// The sections match those of the flags; the default is one worker on one node.
#[derive(Debug, Clone, Default)]
pub struct AgentConfig {
    /// Command that each worker executes.
    pub entrypoint: Entrypoint,
    /// Python modules that one process imports, which then forks the workers.
    /// For entry points that Python runs. Workers that start before the imports are finished
    /// execute their program. So do all workers if the list is empty, which is the default.
    pub preload: Vec<String>,
    /// Environment of the workers, without the variables of their ranks.
    /// The default is empty.
    pub environment: BTreeMap<OsString, OsString>,
    /// Name and size of the worker group.
    pub identity: GroupIdentity,
    /// Restarts after failures: their number, delay and exceptions.
    pub restarts: RestartOptions,
    /// Signals and time limits with which the agent stops the workers.
    pub stop: StopOptions,
    /// Notice to workers that the scheduler will take their node away.
    /// The default is `None`.
    pub preemption: Option<PreemptionPlan>,
    /// Rendezvous of this node with the other nodes, and the store of the workers.
    pub rendezvous: RendezvousOptions,
    /// Part of this machine that each worker gets.
    pub placement: PlacementOptions,
    /// Destination of the workers' output.
    /// The default is the console, without files.
    pub logs: LogPlan,
    /// Recovery of workers in their processes; `None` without `--in-process`.
    pub recovery: Option<RecoveryPlan>,
    /// Detection of workers that hang, and the action that follows.
    /// The default is no detection.
    pub hang: HangPlan,
    /// Observation of the agent and its workers from other threads and processes.
    pub observe: ObserveOptions,
}

/// Rendezvous of a node with the other nodes, and the store of the workers.
#[derive(Debug, Clone)]
pub struct RendezvousOptions {
    /// Kind of rendezvous.
    /// The default is [`RendezvousPlan::Local`]: this node is the only one.
    pub plan: RendezvousPlan,
    /// Backends of dynamic rendezvous, by name.
    /// The default is the set of backends that rdzv contains.
    pub backends: BackendRegistry,
    /// Command that must succeed before this node joins a round.
    /// The default is `None`.
    pub node_check: Option<NodeCheckPlan>,
    /// `true` if the job cannot succeed without this node.
    /// A run that ends without this node then belongs to another job. The default is `false`.
    pub is_needed: bool,
    /// Address of the workers' store if this node is the only one.
    /// `None` means `127.0.0.1`. Other kinds of rendezvous have the address in their parameters.
    pub local_addr: Option<String>,
    /// Port of the workers' store.
    /// The default is a free port.
    pub master_port: MasterPort,
    /// `true` if an agent hosts the workers' store.
    /// `false` leaves the workers' store to the worker with rank 0
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`). Static rendezvous ignores `false`. The default is
    /// `true`.
    pub share_store: bool,
    /// Policy of the workers' store for local and static rendezvous.
    /// Dynamic backends have the policy in their parameters.
    pub store_policy: StorePolicy,
    /// `true` if agents compute the ranks without an exchange.
    /// Corresponds to `TORCH_ELASTIC_WORKER_IDENTICAL=1`. The default is `false`.
    pub identical_workers: bool,
    /// Limit on how long a node whose workers succeeded waits for other nodes.
    /// The default is `None`: the node waits while the others run.
    pub exit_barrier_timeout: Option<Duration>,
    /// `true` if a successful node joins again when other nodes restart.
    /// Only a dynamic rendezvous permits that. In each rendezvous, such a node also leaves the run
    /// to the others after [`Self::exit_barrier_timeout`], and does not end it for them. `false` is
    /// for behaviour as in torchrun. The default is `true`.
    pub joins_again: bool,
    /// Limit on consecutive restarts of an agent that was killed or panicked.
    /// The limit counts only agents that die within 10 s of their start; 0 disables restarts. It
    /// applies only to an agent that [`keep`](crate::launcher::keep) started.
    pub agent_restarts: u32,
    /// Sockets and record that outlive an agent that may be restarted.
    /// [`run`](crate::run()) sets this field.
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
            exit_barrier_timeout: None,
            joins_again: true,
            agent_restarts: 0,
            kept: None,
        }
    }
}

/// Part of a machine that each worker gets.
#[derive(Debug, Clone, Default)]
pub struct PlacementOptions {
    /// Processors that each worker may use, by local rank (`--numa-binding`).
    /// [`Hardware::bind`](crate::launcher::topology::Hardware::bind) chooses them. Workers beyond
    /// the end of the list may use all processors of the agent. An empty list binds no worker.
    pub processors: Vec<CpuList>,
    /// `true` if every worker has local rank 0 and sees one device.
    /// The default is `false`.
    pub virtual_local_rank: bool,
    /// Soft limit on the open files of a worker.
    /// `None` passes the agent's limit on.
    pub open_files: Option<u64>,
}

/// Observation of an agent and its workers from other threads and processes.
#[derive(Debug, Clone, Default)]
pub struct ObserveOptions {
    /// Health check of the agent's threads; a clone answers other threads.
    pub liveness: Liveness,
    /// Last heartbeats of the workers; a clone answers other threads.
    pub beats: Beats,
    /// Private directory for the workers' sockets (`TORCH_WORKER_SERVER_SOCKET`).
    /// `None` leaves that variable unchanged. The path must be short, because the path of a socket
    /// has at most 107 bytes.
    pub worker_sockets: Option<PathBuf>,
}

/// Recovery of workers in their processes (`--in-process`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// Time that a worker has to leave its function.
    /// Then the agent kills the worker. If the agent stops other workers at the same time, the
    /// shutdown timeout applies if it is longer.
    pub abort_timeout: Duration,
    /// Directory in which the agent creates the directory of the control socket.
    /// The path must be short, because the path of a socket has at most 107 bytes.
    pub directory: PathBuf,
}

impl AgentConfig {
    /// Returns the path of a worker's socket; `None` if workers have no sockets.
    pub fn worker_socket(&self, local_rank: LocalRank) -> Option<PathBuf> {
        let directory = self.observe.worker_sockets.as_ref()?;
        Some(directory.join(local_rank.to_string()))
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        let value = self.environment.get(OsStr::new(name))?;
        Some(value.to_string_lossy().into_owned())
    }

    /// Returns the variables that restrict the devices that workers see.
    pub(crate) fn visible_lists(&self) -> VisibleLists {
        VisibleLists {
            cuda: self.variable(env::CUDA_VISIBLE_DEVICES),
            hip: self.variable(env::HIP_VISIBLE_DEVICES),
        }
    }

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
            // Every round of a dynamic rendezvous has an empty store.
            purge_store: !dynamic && plan.nodes() == 1,
            dynamic,
            joins_again: dynamic && self.rendezvous.joins_again,
            abort_timeout: self.recovery.as_ref().map(|plan| plan.abort_timeout),
            nccl_error_handling: self.variable(env::TORCH_NCCL_ASYNC_ERROR_HANDLING),
            virtual_local_rank: self
                .placement
                .virtual_local_rank
                .then(|| self.visible_lists()),
            rules: Rules::default(),
        }
    }
}

/// Check that a node runs before it joins each round.
///
/// A node that fails the check leaves the job with
/// [`AgentError::NodeCheck`](crate::AgentError::NodeCheck). The other nodes continue without it, or
/// with a spare node, if there are enough nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeCheckPlan {
    /// Command line for `sh`.
    pub command: String,
    /// Limit on the run time of the command.
    /// After this time the agent kills the command and the check fails.
    pub timeout: Duration,
}

/// Port of the workers' store.
#[derive(Debug, Clone, Default)]
pub enum MasterPort {
    /// Free port of the agent's choice.
    /// The agent listens there immediately, or reserves the port for the worker that hosts the
    /// store. While it is reserved, no other process gets the port as a free one.
    #[default]
    Free,
    /// Specified port.
    /// Static rendezvous ignores it and uses the port of the endpoint.
    Fixed(u16),
    /// Port of this bound socket, on which the agent listens; for one node only.
    Kept(Arc<TcpListener>),
}

/// Command that a worker executes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Entrypoint {
    /// Program; searched for in `PATH` if it contains no slash.
    pub program: OsString,
    /// Arguments before the replacement of `${local_rank}`.
    pub arguments: Vec<OsString>,
    /// Name in the failure report: script, module, function or program.
    pub name: String,
}

/// Kind of rendezvous between the nodes of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RendezvousPlan {
    /// One node: no rendezvous is needed.
    /// The agent or the worker with rank 0 hosts the workers' store on this node.
    Local,
    /// Fixed ranks: node 0 hosts one store at the endpoint, for agents and workers.
    Static {
        /// Endpoint at which node 0 listens.
        endpoint: Endpoint,
        /// Rank of this node.
        node_rank: GroupRank,
        /// Number of nodes.
        nodes: u32,
        /// Limit on how long a node waits for the other nodes.
        timeout: Duration,
    },
    /// Dynamic membership: a backend decides who participates in each round.
    /// The agent finds the backend by name in the registry.
    Dynamic {
        /// Backend, endpoint and number of nodes.
        /// Without a `local_addr` the backend detects an address at which other nodes can reach
        /// this one.
        parameters: RendezvousParameters,
    },
}

impl RendezvousPlan {
    /// Returns the maximum number of nodes.
    pub fn nodes(&self) -> u32 {
        match self {
            Self::Local => 1,
            Self::Static { nodes, .. } => *nodes,
            Self::Dynamic { parameters } => parameters.max_nodes,
        }
    }

    /// Returns the name of the rendezvous backend, as events show it.
    pub fn backend(&self) -> &str {
        match self {
            Self::Local => C10dRendezvous::NAME,
            Self::Static { .. } => StaticRendezvous::NAME,
            Self::Dynamic { parameters } => &parameters.backend,
        }
    }
}

/// Selection of output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StreamSelection {
    /// Standard output.
    pub stdout: bool,
    /// Standard error.
    pub stderr: bool,
}

/// Selection of output streams per local rank (`-r`, `-t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankSelection {
    /// Same selection for every rank.
    All(StreamSelection),
    /// Selection by rank; empty for a rank without an entry.
    Each(BTreeMap<u32, StreamSelection>),
}

impl RankSelection {
    /// Returns the selection for one rank.
    pub fn of(&self, local_rank: u32) -> StreamSelection {
        match self {
            Self::All(selection) => *selection,
            Self::Each(map) => map.get(&local_rank).copied().unwrap_or_default(),
        }
    }
}

/// Destination of the workers' output.
#[derive(Debug, Clone)]
pub struct LogPlan {
    /// Directory in which the agent creates the directory of the run.
    pub base: LogBase,
    /// Streams that go to files only.
    pub redirects: RankSelection,
    /// Streams that go to files and, with a prefix, to the console.
    pub tee: RankSelection,
    /// Local ranks whose output may reach the console; `None` = all.
    /// For other ranks, the agent keeps the last 64 KiB of output that goes to no file. The agent
    /// shows this output if the worker fails. Without files ([`LogBase::Discard`]), the output of
    /// all ranks reaches the console.
    pub console_ranks: Option<BTreeSet<u32>>,
    /// Texts that select teed stdout lines for `filtered_stdout.log`.
    /// A line is copied if it contains one of them.
    pub stdout_filters: Vec<String>,
    /// Texts that select teed stderr lines for `filtered_stderr.log`.
    /// A line is copied if it contains one of them.
    pub stderr_filters: Vec<String>,
    /// Template of the console prefix, before the replacement of macros.
    pub prefix_template: String,
    /// `true` if equal teed lines of several workers within 100 ms become one line.
    /// Macros of the prefix then name all their ranks (`0-3,5`). Other lines appear up to 100 ms
    /// later.
    pub collapse: bool,
    /// `true` if the agent keeps the workers' last stderr lines for the report.
    /// Workers that share the agent's stderr then write to it through a pipe, unless it is a
    /// terminal. The default is `true`.
    pub capture_stderr: bool,
    /// `true` if the agent also keeps the last lines if stderr is a terminal.
    /// Workers then get a pseudo-terminal as their stderr, and the agent copies its bytes to the
    /// terminal unchanged. The default is `false`.
    pub capture_terminal: bool,
    /// `true` if lines of workers that share the agent's output stay whole.
    /// Workers then write to stdout through a pipe too, if it is a file, a pipe or a socket. The
    /// default is `false`: they inherit stdout.
    pub whole_lines: bool,
}

impl LogPlan {
    /// Sends all output to the console unchanged.
    /// The directory contains only the error files of workers.
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
            whole_lines: false,
        }
    }
}

impl LogPlan {
    /// `true` if a setting needs files for the workers' output.
    pub(crate) fn asks_for_files(&self) -> bool {
        matches!(self.base, LogBase::Directory(_))
            || self.writes_files()
            || self.console_ranks.is_some()
    }

    /// `true` if output of some worker goes to files (`-r`, `-t`).
    pub fn writes_files(&self) -> bool {
        let nothing = RankSelection::All(StreamSelection::default());
        self.base != LogBase::Discard && (self.redirects != nothing || self.tee != nothing)
    }
}

impl Default for LogPlan {
    fn default() -> Self {
        Self::new(LogBase::Discard)
    }
}

/// Directory in which the agent creates the directory of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogBase {
    /// Absolute path of `--log-dir`.
    Directory(PathBuf),
    /// New directory `torchelastic_…` below this one (`TMPDIR`).
    /// The agent removes it at the end if it contains neither output nor an error file.
    Temporary(PathBuf),
    /// No files (`--log-dir /dev/null`): all output goes to the console.
    Discard,
}
