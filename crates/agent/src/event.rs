//! The one stream of everything that happens in a run. Observers read it; nothing flows back.

use std::time::Duration;

use rdzv_core::rank::{GroupRank, LocalRank, Rank, RoleRank};
use rdzv_core::time::Wall;

use crate::Exit;

/// Who an event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventSource {
    /// The agent itself.
    Agent,
    /// One worker.
    Worker,
}

/// A worker's place in the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerIdentity {
    /// Rank within the node.
    pub local_rank: LocalRank,
    /// Rank in the job.
    pub rank: Rank,
    /// Number of workers in the job.
    pub world_size: u32,
    /// Rank among its role.
    pub role_rank: RoleRank,
    /// Number of workers of its role.
    pub role_world_size: u32,
    /// Process id; 0 before it was started.
    pub pid: u32,
}

/// Something that happened.
#[derive(Debug, Clone)]
pub enum AgentEvent {
    /// A rendezvous completed or failed.
    Rendezvous {
        /// When.
        at: Wall,
        /// How long it took.
        took: Duration,
        /// The rank and number of agents, or why it failed.
        result: Result<(GroupRank, u32), String>,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// Ranks were assigned.
    RanksAssigned {
        /// When.
        at: Wall,
        /// How long it took.
        took: Duration,
        /// The workers of this node.
        workers: Vec<WorkerIdentity>,
        /// Where the workers' store is.
        master_addr: String,
        /// Its port.
        master_port: u16,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// A worker was started.
    WorkerStarted {
        /// When.
        at: Wall,
        /// Which.
        worker: WorkerIdentity,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// A worker ended.
    WorkerExited {
        /// When.
        at: Wall,
        /// Which.
        worker: WorkerIdentity,
        /// How.
        exit: Exit,
        /// True if the agent had signalled it before.
        stopped_by_agent: bool,
    },
    /// A closing signal was sent to a worker's process group, or SIGKILL after the grace.
    WorkerSignalled {
        /// When.
        at: Wall,
        /// Its process id.
        pid: u32,
        /// The signal.
        signal: i32,
        /// True if this is the SIGKILL after the grace had passed.
        forced: bool,
    },
    /// The group failed and is restarted.
    Restarting {
        /// When.
        at: Wall,
        /// How many restarts are left after this one.
        remaining: u32,
        /// `--max-restarts`.
        most: u32,
    },
    /// The attempt is given up to take part in the next round, which costs no restart.
    Regrouping {
        /// When.
        at: Wall,
        /// Which nodes came or went, and how that was noticed; one sentence.
        reason: String,
    },
    /// The agent received a signal.
    SignalReceived {
        /// When.
        at: Wall,
        /// Its number.
        signal: i32,
    },
    /// The run ended for one worker (once per worker, at the end of the run).
    WorkerFinal {
        /// When.
        at: Wall,
        /// Which.
        worker: WorkerIdentity,
        /// `SUCCEEDED`, `FAILED` or `TERMINATED`.
        state: &'static str,
        /// How it ended, where that is known.
        exit: Option<Exit>,
        /// The raw error text (error-file JSON), if it left one.
        raw_error: Option<String>,
    },
    /// The run ended for the agent.
    AgentFinal {
        /// When.
        at: Wall,
        /// `SUCCEEDED` if the loop returned (also with failed workers), `FAILED` on error or signal.
        state: &'static str,
        /// How long the run took.
        took: Duration,
        /// Whether the workers succeeded: ours, and true.
        workers_succeeded: bool,
        /// The error of the agent, if it ended by one.
        raw_error: Option<String>,
    },
}
