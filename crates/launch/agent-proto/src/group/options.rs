//! Specification of a worker group.
//!
//! The agent's configuration embeds the sections of [`GroupSpec`], so a new field of a section
//! reaches the machine without further code.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use crate::topology::VisibleLists;
use rdzv_core::ident::RunId;
use rdzv_core::rules::Rules;

/// Specification of one agent's workers, constant for the whole run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupSpec {
    /// Name and size of the group.
    pub identity: GroupIdentity,
    /// Restarts after failures: their number, delay and exceptions.
    pub restarts: RestartOptions,
    /// Shutdown of the workers by the agent.
    pub stop: StopOptions,
    /// Handling of the scheduler's preemption notice; `None` if disabled.
    pub preemption: Option<PreemptionPlan>,
    /// Number of restarts that a previous agent of this node has used.
    /// 0 if there was no previous agent.
    pub restarts_used: u32,
    /// `true` if the agent empties the workers' store after a restart.
    /// This is correct only if no worker of another node uses the store.
    pub purge_store: bool,
    /// `true` if nodes can join and leave while the workers run.
    pub dynamic: bool,
    /// `true` if a successful node joins again when other nodes restart.
    /// Agents of torchrun do not.
    pub joins_again: bool,
    /// Value of `TORCH_NCCL_ASYNC_ERROR_HANDLING` for the workers.
    /// `None` means `1`.
    pub nccl_error_handling: Option<String>,
    /// Time that workers have to leave their function (`--abort-timeout`).
    /// The shutdown timeout applies if it is longer and other workers are stopped at the same time.
    /// `None` without `--in-process`.
    pub abort_timeout: Option<Duration>,
    /// Devices to divide among the workers.
    /// `None` without `--virtual-local-rank`.
    pub virtual_local_rank: Option<VisibleLists>,
    /// Rules of recovery that the group follows.
    pub rules: Rules<RecoveryRule>,
}

/// A rule of recovery in the process; a simulation breaks one at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecoveryRule {
    /// The next round begins after all workers have left their function.
    AllLeave,
    /// Only a worker that has connected to the agent keeps its process.
    OnlyConnectedStay,
    /// Workers that leave late have the whole abort timeout.
    TimeoutIsKept,
    /// A worker that continues in the next round is no longer ready.
    GoEndsReadiness,
    /// The worker that replaces an exited one is new to the agent.
    ExitIsForgotten,
}

/// Name and size of a worker group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupIdentity {
    /// Label of the workers (`--role`); default `default`.
    pub role: String,
    /// Name of the job for workers and log directories; default `none`.
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

/// Restarts after failures: their number, delay and exceptions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RestartOptions {
    /// Maximum number of restarts after failures; default 0.
    /// All agents of rdzv at one coordinator share them, except with `--in-process`.
    pub max_restarts: u32,
    /// Delay between the stop of the workers and the next rendezvous; default none.
    pub settle_delay: Duration,
    /// Exit codes after which the group does not restart; default none.
    /// A negative number is minus a signal.
    pub non_retryable: BTreeSet<i32>,
}

/// Shutdown of the workers by the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOptions {
    /// Time between the closing signal and SIGKILL; default 30 s.
    pub shutdown_timeout: Duration,
    /// Numbers of the signals on which the agent stops the run.
    /// The default is SIGTERM, SIGINT, SIGHUP and SIGQUIT.
    pub signals: Vec<i32>,
    /// Value of the workers' `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    /// The launcher sets it to the text of `--signals-to-handle`.
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

/// Handling of the notice that the scheduler will take the job's nodes away.
///
/// At least one agent receives the notice as a signal. The other agents of the round with the same
/// signal receive it through the round's store. Each agent with the notice writes the file, and
/// sends the signal once to each of its workers that handles it, unless the scheduler did so. No
/// restart follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreemptionPlan {
    /// Number of the signal.
    pub signal: i32,
    /// Time that workers have to exit after the notice.
    /// Then the agent stops them with SIGTERM.
    pub shutdown_timeout: Duration,
    /// File that the agent writes on the notice; `None` if there is none.
    /// The file holds the Unix time, in seconds, at which the workers' time ends.
    pub file: Option<PathBuf>,
}
