//! The one stream of everything that happens in a run.
//! Observers read it; nothing flows back.

use std::time::Duration;

use rdzv_agent_proto::group::GroupState;
use rdzv_core::rank::GroupRank;
use rdzv_core::time::Wall;
use rdzv_rendezvous::{GroupEvent, NodeState};

use crate::hang::{HangReport, WatchdogAction, WatchdogTimer};
use crate::worker::{WorkerFiles, WorkerIdentity};
use crate::{Cause, Exit, Failure, RoundStore, Verdict};

/// Something that happened.
///
/// To add a variant: give it `at`, and follow the compiler through the sinks in `observe`, where
/// every match names every variant.
#[derive(Debug, Clone)]
pub enum AgentEvent {
    /// The agent looks for the other nodes.
    RendezvousBegan {
        /// When.
        at: Wall,
        /// Number of restarts that have been used.
        restart_count: u32,
    },
    /// Something a dynamic rendezvous has to say about this node or another.
    RendezvousNotice {
        /// When.
        at: Wall,
        /// How far this node is.
        state: NodeState,
        /// One sentence.
        message: String,
        /// Where the rendezvous is, if that is known.
        endpoint: String,
        /// This node's rank, if it has one.
        rank: Option<GroupRank>,
        /// The error, if this is about one.
        error: Option<String>,
    },
    /// The watchdog over the workers' own timers did something.
    Watchdog {
        /// When.
        at: Wall,
        /// What.
        action: WatchdogAction,
        /// Which timer it was about.
        timer: Option<WatchdogTimer>,
    },
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
        /// The number of the round, from 0 and the same for all agents.
        round: u64,
        /// This agent's number.
        group_rank: GroupRank,
        /// How many agents take part.
        group_world_size: u32,
        /// The workers of this node.
        workers: Vec<WorkerIdentity>,
        /// Where the workers' store is.
        master_addr: String,
        /// Its port.
        master_port: u16,
        /// The store that the agents of the round share.
        store: RoundStore,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// A worker was started.
    WorkerStarted {
        /// When.
        at: Wall,
        /// Which.
        worker: WorkerIdentity,
        /// Where its output goes.
        files: WorkerFiles,
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
    /// A worker's process group got a closing signal, or SIGKILL after the timeout.
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
        /// `Failed` if a worker has ended, `Unhealthy` if workers hang.
        state: GroupState,
        /// How many restarts are left after this one.
        remaining: u32,
        /// `--max-restarts`.
        most: u32,
        /// The first failure of the attempt, if one is known.
        failure: Option<Box<Failure>>,
    },
    /// The agent ends the attempt for the next round, which costs no restart.
    Regrouping {
        /// When.
        at: Wall,
        /// Which nodes came or went, and how that was noticed; one sentence.
        reason: String,
    },
    /// Something about the coordinator of a dynamic rendezvous, its voters, or the fence of this node.
    Group {
        /// When.
        at: Wall,
        /// One sentence.
        message: String,
        /// The same for programs.
        event: GroupEvent,
    },
    /// This agent was started in place of one that was killed.
    AgentRestarted {
        /// When.
        at: Wall,
        /// Number of agents of this node that were killed until now.
        restarts: u32,
        /// The end of the last one; one sentence.
        reason: String,
    },
    /// The worker group is in another state than before.
    StateChanged {
        /// When.
        at: Wall,
        /// The state now.
        state: GroupState,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// Workers hang. One of a group that makes no progress is said once, until it does again.
    Hang {
        /// When.
        at: Wall,
        /// Who, why, where all workers are, and what follows.
        report: HangReport,
    },
    /// Workers of a group that made no progress do so again.
    HangOver {
        /// When.
        at: Wall,
    },
    /// The agent received a signal.
    SignalReceived {
        /// When.
        at: Wall,
        /// Its number.
        signal: i32,
    },
    /// The scheduler takes the nodes away, and the agent notifies the workers.
    Preempted {
        /// When.
        at: Wall,
        /// The number of the signal that says so.
        signal: i32,
        /// The rank of the node that has got it; `None` for this one.
        by: Option<GroupRank>,
        /// Time that workers have to end on notice.
        grace: Duration,
    },
    /// Output of workers did not reach the console when the run was stopped.
    /// Until then, no process had read it.
    OutputDropped {
        /// When.
        at: Wall,
        /// Their number, as far as is known.
        bytes: u64,
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
        /// Why it failed, if it did.
        cause: Option<Cause>,
        /// The raw error text (error-file JSON), if it left one.
        raw_error: Option<String>,
    },
    /// What is known of the failures of the run, once it has ended; also if there were none.
    Verdict {
        /// When.
        at: Wall,
        /// Which failure came first, and what followed from it.
        verdict: Box<Verdict>,
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

impl AgentEvent {
    /// Returns the time of the event.
    pub fn at(&self) -> Wall {
        match self {
            Self::RendezvousBegan { at, .. }
            | Self::RendezvousNotice { at, .. }
            | Self::Watchdog { at, .. }
            | Self::Rendezvous { at, .. }
            | Self::RanksAssigned { at, .. }
            | Self::WorkerStarted { at, .. }
            | Self::WorkerExited { at, .. }
            | Self::WorkerSignalled { at, .. }
            | Self::Restarting { at, .. }
            | Self::Regrouping { at, .. }
            | Self::Group { at, .. }
            | Self::AgentRestarted { at, .. }
            | Self::StateChanged { at, .. }
            | Self::Hang { at, .. }
            | Self::HangOver { at }
            | Self::SignalReceived { at, .. }
            | Self::Preempted { at, .. }
            | Self::OutputDropped { at, .. }
            | Self::WorkerFinal { at, .. }
            | Self::Verdict { at, .. }
            | Self::AgentFinal { at, .. } => *at,
        }
    }
}
