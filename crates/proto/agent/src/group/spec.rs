//! What a worker group is, and what a round tells it.

use std::collections::BTreeSet;
use std::time::Duration;

use rdzv_core::ident::RunId;
use rdzv_core::rank::GroupRank;

/// What the workers of one agent are; the same for the whole run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// The label of all its workers.
    pub role: String,
    /// The job's name.
    pub run_id: RunId,
    /// How many workers; at least 1.
    pub local_world_size: u32,
    /// How often the group may be restarted.
    pub max_restarts: u32,
    /// How long workers have between the closing signal and SIGKILL, on every path.
    pub grace: Duration,
    /// How long the node rests between the end of its workers and the next rendezvous.
    pub settle_delay: Duration,
    /// The exit codes, or minus the numbers of signals, of failures that no restart helps.
    pub non_retryable: BTreeSet<i32>,
    /// Whether the workers' store is emptied before a further attempt starts. Only right if no
    /// worker of another node uses it.
    pub purge_store: bool,
    /// Whether nodes may come and go while the workers run.
    pub dynamic: bool,
    /// Value of the workers' `TORCHELASTIC_SIGNALS_TO_HANDLE`.
    pub signals_text: String,
    /// Value of the workers' `TORCH_NCCL_ASYNC_ERROR_HANDLING`, if the environment has one.
    pub nccl_error_handling: Option<String>,
    /// With `--virtual-local-rank`: the devices that are divided among the workers.
    pub virtual_local_rank: Option<VisibleDevices>,
}

/// The device lists of the agent's environment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VisibleDevices {
    /// `HIP_VISIBLE_DEVICES`.
    pub hip: Option<String>,
    /// `CUDA_VISIBLE_DEVICES`.
    pub cuda: Option<String>,
}

/// What the rendezvous agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0 and the same for all agents.
    pub number: u64,
    /// This agent's number.
    pub group_rank: GroupRank,
    /// How many agents take part.
    pub group_world_size: u32,
    /// Where the workers meet.
    pub master: Master,
    /// How long after another node has vanished this one hears of it, at the latest. The last
    /// failure of a budget waits so long for that explanation ([`EXPLAINED_WITHIN`](super::policy::EXPLAINED_WITHIN) where nothing
    /// better is known).
    pub losses_known_within: Duration,
}

/// Where the workers meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// `MASTER_ADDR`.
    pub addr: String,
    /// `MASTER_PORT`.
    pub port: u16,
    /// Whether an agent hosts the store there; if not, the worker with rank 0 does.
    pub hosted_by_agent: bool,
}
