//! The configuration of an agent, fully resolved: nothing in here needs the command line or the
//! environment again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::health::Liveness;
use rdzv_agent_proto::group::{GroupSpec, Master, Round, WorkerRanks, barrier, environment};
use rdzv_agent_proto::topology::{CpuList, VisibleLists};
use rdzv_core::endpoint::Endpoint;
use rdzv_core::env;
use rdzv_core::ident::RunId;
use rdzv_core::rank::{Assignment, GroupRank, LocalRank};
use rdzv_rendezvous::{BackendRegistry, Kept, RendezvousParameters};
use rdzv_store::StorePolicy;

use crate::AgentError;
use crate::hang::HangPlan;

/// Defines the settings: one line each makes a field, its default and its setter.
macro_rules! settings {
    ($($(#[doc = $doc:literal])* $name:ident: $type:ty = $default:expr;)*) => {
        /// The configuration of an agent: one run of workers on this node. Made by
        /// [`AgentConfig::builder`].
        #[derive(Debug, Clone)]
        pub struct AgentConfig {
            /// What each worker executes.
            pub entrypoint: Entrypoint,
            $($(#[doc = $doc])* pub $name: $type,)*
        }

        impl AgentConfigBuilder {
            fn new(entrypoint: Entrypoint) -> Self {
                Self(AgentConfig { entrypoint, $($name: $default,)* })
            }

            $($(#[doc = $doc])* pub fn $name(mut self, $name: $type) -> Self {
                self.0.$name = $name;
                self
            })*
        }
    };
}

settings! {
    /// The label of the workers (`--role`); `default`.
    role: String = "default".to_owned();
    /// The job's name, as workers and log directories see it; `none`.
    run_id: RunId = RunId::new("none");
    /// How many workers this node starts; 1, and never 0.
    local_world_size: u32 = 1;
    /// How the nodes find one another; there is only this one.
    rendezvous: RendezvousPlan = RendezvousPlan::Local;
    /// The dynamic rendezvous that there are, by name; those of rdzv.
    backends: BackendRegistry = BackendRegistry::with_defaults();
    /// How often the group may be restarted after a failure; not at all.
    max_restarts: u32 = 0;
    /// The most lives in a row shorter than 10 s after which an agent that is killed is started again; 0
    /// never does that. Only of an agent that a keeper has started ([`keep`](crate::keep)).
    agent_restarts: u32 = 0;
    /// The sockets and notes that outlive this agent then; [`run`](crate::run()) fills it in.
    kept: Option<Kept> = None;
    /// How long workers have between the closing signal and SIGKILL, on every path; 30 s.
    shutdown_timeout: Duration = Duration::from_secs(30);
    /// Time for which a node whose workers have succeeded waits for the others; 300 s.
    exit_barrier_timeout: Duration = barrier::EXIT_BARRIER_TIMEOUT;
    /// The notice to workers that the scheduler will take their node away; none.
    preemption: Option<PreemptionPlan> = None;
    /// The command that has to succeed before this node joins a round; none.
    node_check: Option<NodeCheckPlan> = None;
    /// Whether the job cannot do without this node, so that a run that ends without it is that of another job; false.
    is_needed: bool = false;
    /// How long the node rests between the end of its workers and the next rendezvous; not at all.
    settle_delay: Duration = Duration::ZERO;
    /// The exit codes (minus the numbers of signals) of failures after which no restart is tried;
    /// none.
    non_retryable: BTreeSet<i32> = BTreeSet::new();
    /// Signals (numbers) that end the run in order when the agent receives them; SIGTERM, SIGINT,
    /// SIGHUP and SIGQUIT.
    signals: Vec<i32> = vec![15, 2, 1, 3];
    /// `--signals-to-handle` as typed, for the workers' environment.
    signals_text: String = "SIGTERM,SIGINT,SIGHUP,SIGQUIT".to_owned();
    /// True gives every worker local rank 0 and the one device that is its own; false.
    virtual_local_rank: bool = false;
    /// False leaves hosting the workers' store to the worker with rank 0
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`); true. Static rendezvous always shares; whether
    /// another one can is its own business.
    share_store: bool = true;
    /// The address of this node that others should use; `None` = found out.
    local_addr: Option<String> = None;
    /// True computes ranks without an exchange (`TORCH_ELASTIC_WORKER_IDENTICAL=1`); false.
    identical_workers: bool = false;
    /// Where the workers' output goes; to the console, without files.
    logs: LogPlan = LogPlan::new(LogBase::Discard);
    /// Whether the last lines of workers that share the agent's stderr are kept for the failure
    /// report: unless it is a terminal, they then write to it through a pipe. True.
    capture_stderr: bool = true;
    /// The same on a terminal: workers that would share it get a pseudo-terminal in place of their stderr, from which
    /// the bytes go to it unchanged. False.
    capture_terminal: bool = false;
    /// The environment that workers start from, before the variables of their ranks; empty.
    environment: BTreeMap<OsString, OsString> = BTreeMap::new();
    /// Name of the rendezvous backend, as events show it.
    rendezvous_backend: String = "c10d".to_owned();
    /// The workers' store if this node is alone or the rendezvous is static; other backends
    /// have it in their parameters.
    store_policy: StorePolicy = StorePolicy::default();
    /// The port of the workers' store; one that is free.
    master_port: MasterPort = MasterPort::Free;
    /// The processors that each worker may use, by local rank (`--numa-binding`; what
    /// [`Hardware::bind`](crate::topology::Hardware::bind) says). Workers beyond the list may use
    /// what the agent may; an empty list binds nobody.
    processors: Vec<CpuList> = Vec::new();
    /// How workers that hang are noticed, and what follows; not at all.
    hang: HangPlan = HangPlan::default();
    /// Watches the agent's own threads, for whoever keeps a clone of it.
    liveness: Liveness = Liveness::new();
    /// Number of files that workers may open, if that is less than the agent may (the soft limit); `None`
    /// leaves it.
    open_files: Option<u64> = None;
    /// A private directory for the workers' sockets (`TORCH_WORKER_SERVER_SOCKET`); `None` leaves
    /// the variable as it is. Its path is short: a socket's has 107 bytes at most.
    worker_sockets: Option<PathBuf> = None;
}

/// An [`AgentConfig`] in the making.
#[derive(Debug)]
#[must_use = "a configuration is made by `build`"]
pub struct AgentConfigBuilder(AgentConfig);

impl AgentConfigBuilder {
    /// The configuration.
    pub fn build(self) -> AgentConfig {
        self.0
    }
}

impl AgentConfig {
    /// Begins with one worker on one node, and every setting at its default.
    pub fn builder(entrypoint: Entrypoint) -> AgentConfigBuilder {
        AgentConfigBuilder::new(entrypoint)
    }

    /// The path of a worker's socket, if workers have any.
    pub fn worker_socket(&self, local_rank: LocalRank) -> Option<PathBuf> {
        let directory = self.worker_sockets.as_ref()?;
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
        let dynamic = matches!(self.rendezvous, RendezvousPlan::Dynamic { .. });
        GroupSpec {
            role: self.role.clone(),
            run_id: self.run_id.clone(),
            local_world_size: self.local_world_size,
            max_restarts: self.max_restarts,
            restarts_used: self
                .kept
                .as_ref()
                .map_or(0, |kept| kept.note().restarts_used),
            grace: self.shutdown_timeout,
            preempt_grace: self
                .preemption
                .as_ref()
                .map_or(Duration::ZERO, |plan| plan.grace),
            settle_delay: self.settle_delay,
            non_retryable: self.non_retryable.clone(),
            // A dynamic rendezvous hands out an empty store by itself.
            purge_store: !dynamic && self.rendezvous.nodes() == 1,
            dynamic,
            signals_text: self.signals_text.clone(),
            nccl_error_handling: self.variable(env::TORCH_NCCL_ASYNC_ERROR_HANDLING),
            virtual_local_rank: self.virtual_local_rank.then(|| self.visible_lists()),
        }
    }
}

/// The notice that the scheduler will take the nodes of the job away.
///
/// It reaches one agent as a signal, and all agents of the round through the store of the round. Each of them
/// writes the file, and sends the signal to those of its workers that handle it, once. No restart follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptionPlan {
    /// The number of the signal.
    pub signal: i32,
    /// Time that workers have to end by themselves. Then they are stopped as by SIGTERM.
    pub grace: Duration,
    /// The file that is there from the notice on: Unix time in seconds at which the grace ends.
    pub file: Option<PathBuf>,
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
#[derive(Debug, Clone, PartialEq, Eq)]
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
        }
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
    let size = config.local_world_size;
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
