//! Specification of a worker group.
//!
//! The sections are those of the agent's configuration, which embeds them. A new setting is one
//! field here and reaches the machine without further code.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::topology::VisibleLists;
use rdzv_core::ident::RunId;

/// Specification of the workers of one agent; the same for the whole run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupSpec {
    /// Name and size of the group.
    pub identity: GroupIdentity,
    /// Failures that lead to another attempt, and the time before it.
    pub restarts: RestartOptions,
    /// Ends of the workers that the agent causes.
    pub stop: StopOptions,
    /// Notice that the scheduler will take the node away; `None` if there is none.
    pub preemption: Option<PreemptionPlan>,
    /// Number of restarts that a previous agent of this node has used.
    /// 0 if there was no previous agent.
    pub restarts_used: u32,
    /// `true` if the machine empties the workers' store before a further attempt.
    /// Only correct if no worker of another node uses the store.
    pub purge_store: bool,
    /// `true` if nodes can join and leave while the workers run.
    pub dynamic: bool,
    /// `true` if a node whose workers succeeded joins again with other nodes.
    /// Agents of torchrun do not.
    pub joins_again: bool,
    /// Value of the workers' `TORCH_NCCL_ASYNC_ERROR_HANDLING`.
    /// `None` if the environment has none.
    pub nccl_error_handling: Option<String>,
    /// Devices that are divided among the workers.
    /// `None` without `--virtual-local-rank`.
    pub virtual_local_rank: Option<VisibleLists>,
}

/// Name and size of a worker group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupIdentity {
    /// Label of the workers (`--role`); default `default`.
    pub role: String,
    /// Name of the job, as workers and log directories see it; default `none`.
    pub run_id: RunId,
    /// Number of workers that this node starts, never 0; default 1.
    pub local_world_size: u32,
}

impl Default for GroupIdentity {
    fn default() -> Self {
        Self {
            role: "default".to_owned(),
            run_id: RunId::new("none"),
            local_world_size: 1,
        }
    }
}

/// Failures that lead to another attempt, and the time before it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestartOptions {
    /// Number of restarts that the group may use after failures; default 0.
    pub max_restarts: u32,
    /// Delay between the end of the workers and the next rendezvous; default none.
    pub settle_delay: Duration,
    /// Exit codes of failures that no restart helps; default none.
    /// A negative number stands for a signal.
    pub non_retryable: BTreeSet<i32>,
}

/// Ends of the workers that the agent causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOptions {
    /// Time between the closing signal and SIGKILL, on every path; default 30 s.
    pub shutdown_timeout: Duration,
    /// Numbers of the signals to the agent that end the run in an orderly way.
    /// The default is SIGTERM, SIGINT, SIGHUP and SIGQUIT.
    pub signals: Vec<i32>,
    /// Value of the workers' `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    /// It is `--signals-to-handle` as typed.
    pub signals_text: String,
}

impl Default for StopOptions {
    fn default() -> Self {
        Self {
            shutdown_timeout: Duration::from_secs(30),
            signals: vec![15, 2, 1, 3],
            signals_text: "SIGTERM,SIGINT,SIGHUP,SIGQUIT".to_owned(),
        }
    }
}

/// Notice that the scheduler will take the nodes of the job away.
///
/// One agent receives it as a signal, and all agents of the round through the store of the round.
/// Each agent writes the file, and sends the signal once to those of its workers that handle it. No
/// restart follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptionPlan {
    /// Number of the signal.
    pub signal: i32,
    /// Time that workers have to end after the notice.
    /// Then the agent stops them as by SIGTERM.
    pub grace: Duration,
    /// File that exists from the notice on.
    /// It holds the Unix time in seconds at which the workers' time ends.
    pub file: Option<PathBuf>,
}
