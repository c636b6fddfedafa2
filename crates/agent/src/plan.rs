//! What to run, fully resolved: nothing in here needs the command line or the environment again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;
use rdzv_rendezvous::{BackendRegistry, RendezvousParameters};

/// One launch on this node.
#[derive(Debug, Clone)]
pub struct LaunchPlan {
    /// What each worker executes.
    pub entrypoint: Entrypoint,
    /// `--role`.
    pub role: String,
    /// The job's name, as workers and log directories see it.
    pub run_id: RunId,
    /// How many workers this node starts; at least 1.
    pub local_world_size: u32,
    /// How the nodes find one another.
    pub rendezvous: RendezvousPlan,
    /// The dynamic rendezvous that there are, by name; open to more.
    pub backends: BackendRegistry,
    /// How often the group may be restarted after a failure.
    pub max_restarts: u32,
    /// How long workers have between the closing signal and SIGKILL, on every path.
    pub shutdown_timeout: Duration,
    /// Signals (numbers) that end the run in order when the agent receives them.
    pub signals: Vec<i32>,
    /// `--signals-to-handle` as typed, for the workers' environment.
    pub signals_text: String,
    /// `--virtual-local-rank`.
    pub virtual_local_rank: bool,
    /// False leaves hosting the workers' store to the worker with rank 0
    /// (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`). Static rendezvous always shares; whether another
    /// one can is its own business.
    pub share_store: bool,
    /// The address of this node that others should use; `None` = found out.
    pub local_addr: Option<String>,
    /// True computes ranks without an exchange (`TORCH_ELASTIC_WORKER_IDENTICAL=1`).
    pub identical_workers: bool,
    /// Where the workers' output goes.
    pub logs: LogPlan,
    /// The environment that workers start from, before the variables of their ranks.
    pub environment: BTreeMap<OsString, OsString>,
    /// Name of the rendezvous backend, as events show it.
    pub rendezvous_backend: String,
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
    /// Local ranks whose output may reach the console; `None` = all.
    pub console_ranks: Option<BTreeSet<u32>>,
    /// Needles: teed stdout lines that contain one are copied to `filtered_stdout.log`.
    pub stdout_filters: Vec<String>,
    /// Needles: teed stderr lines that contain one are copied to `filtered_stderr.log`.
    pub stderr_filters: Vec<String>,
    /// Template of the console prefix, macros not yet replaced.
    pub prefix_template: String,
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
