//! How a run ended.

use std::path::PathBuf;

use rdzv_agent_proto::group::{Cause, Exit};
use rdzv_core::rank::{GroupRank, LocalRank, Rank};
use rdzv_core::time::Wall;

/// How a run ended on this node.
#[derive(Debug)]
pub enum Outcome {
    /// All workers of this node exited with 0.
    Succeeded,
    /// Workers failed and no restarts were left.
    Failed {
        /// All failures of the last attempt in the order in which they were seen.
        failures: Vec<WorkerFailure>,
        /// Index of the first failure by exit time among those that the agent did not cause.
        root_cause: usize,
    },
    /// The agent was told to stop by a signal that it handles.
    Signalled {
        /// Its number.
        signal: i32,
        /// False if it came before the first worker was started.
        workers_started: bool,
    },
    /// The agent itself could not go on: no rendezvous, program not found, log directory unusable.
    Error(crate::AgentError),
}

/// One worker that failed.
#[derive(Debug, Clone)]
pub struct WorkerFailure {
    /// Its local rank.
    pub local_rank: LocalRank,
    /// Its global rank.
    pub rank: Rank,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When: what its error file says, else when its exit was seen.
    pub time: Wall,
    /// When its exit was seen.
    pub exited: Wall,
    /// True if the agent had signalled it before it ended.
    pub stopped_by_agent: bool,
    /// What it left behind, if anything.
    pub error_file: Option<ErrorFile>,
    /// Why, as far as that can be known.
    pub cause: Cause,
    /// The last lines of its stderr, oldest first. Empty if its stderr went to the console: that is
    /// not in the agent's hands.
    pub stderr_tail: Vec<String>,
    /// Its role.
    pub role: String,
    /// The full name of the node that it ran on.
    pub host: String,
    /// That node's rank among the agents.
    pub group_rank: GroupRank,
}

/// What a worker left at `TORCHELASTIC_ERROR_FILE`.
#[derive(Debug, Clone)]
pub struct ErrorFile {
    /// Where.
    pub path: PathBuf,
    /// Its JSON, or why it could not be read as that.
    pub content: Result<serde_json::Value, String>,
}
