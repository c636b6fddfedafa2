//! The types of the worker group: its inputs and outputs, its endings.

use std::time::Duration;

use super::{Finality, WorkerExit};
use rdzv_core::rank::{Assignment, GroupRank, LocalRank, Rank, RoleRank};

/// A change among the nodes of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipCause {
    /// Nodes are gone, or this one was taken for gone: workers elsewhere may fail because of that.
    Lost,
    /// Workers of another node failed, and its agent has used a restart of the job.
    Restarted,
    /// Nodes wait to join.
    Waiting,
}

/// Result of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Its number, from 0 and the same for all agents.
    pub number: u64,
    /// This agent's number.
    pub group_rank: GroupRank,
    /// Number of agents that take part.
    pub group_world_size: u32,
    /// Address of the workers' store.
    pub master: Master,
    /// Longest time until this node is notified that another one has vanished. The last failure of
    /// a budget waits this long for that explanation ([`EXPLAINED_WITHIN`](super::policy::EXPLAINED_WITHIN)
    /// where the rendezvous gives no time).
    pub losses_known_within: Duration,
}

/// Address of the workers' store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// `MASTER_ADDR`.
    pub addr: String,
    /// `MASTER_PORT`.
    pub port: u16,
    /// Whether an agent hosts the store there; if not, the worker with rank 0 does.
    pub hosted_by_agent: bool,
}

/// The ranks of one worker, and the sizes of the groups that they count in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerRanks {
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
}

impl WorkerRanks {
    /// The ranks of the workers of one node.
    pub fn of_node(assignment: Assignment, local_world_size: u32) -> Vec<Self> {
        (0..local_world_size)
            .map(|local_rank| Self {
                local_rank: LocalRank(local_rank),
                rank: Rank(assignment.base_rank.0 + local_rank),
                world_size: assignment.world_size,
                role_rank: RoleRank(assignment.base_role_rank.0 + local_rank),
                role_world_size: assignment.role_world_size,
            })
            .collect()
    }
}

/// The states that torchelastic names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// Unknown. Never occurs in our agent, which waits for the exit of each worker; other supervisors
    /// may report it.
    Unknown = 0,
    /// Not started yet, or between two attempts.
    Init = 1,
    /// All workers are running or have exited with 0.
    Healthy = 2,
    /// Workers hang; the group is about to be stopped because of that.
    Unhealthy = 4,
    /// Being stopped.
    Stopped = 8,
    /// All workers exited with 0.
    Succeeded = 16,
    /// Ended in any other way.
    Failed = 32,
}

impl GroupState {
    /// The name in torchelastic.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Init => "INIT",
            Self::Healthy => "HEALTHY",
            Self::Unhealthy => "UNHEALTHY",
            Self::Stopped => "STOPPED",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
        }
    }

    /// The number that torchelastic's first agents used for it: one bit each, so that sets of states
    /// can be written as sums.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Whether workers are running in the sense of torchelastic: healthy or not, and not being
    /// stopped.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Healthy | Self::Unhealthy)
    }
}

/// An event of the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupInput {
    /// The run begins.
    Begin,
    /// Answer to [`GroupOutput::Join`].
    Joined(Round),
    /// Answer to [`GroupOutput::Assign`].
    Assigned(Assignment),
    /// Answer to [`GroupOutput::Start`].
    Started(LocalRank),
    /// The agent cannot do what it was asked for; the driver keeps the error. Answer to any output.
    Broken,
    /// Answer to [`GroupOutput::Join`]: the job came to its end without this node.
    NotNeeded,
    /// Workers ended, in this order.
    Exited(Vec<WorkerExit>),
    /// Workers run and make no progress. The group is stopped, as after a failure.
    Unhealthy {
        /// The workers.
        workers: Vec<LocalRank>,
        /// Whether another attempt may help, within the budget of restarts. Not where the kernel
        /// holds a worker: it keeps what the next attempt would need, so that the remaining
        /// restarts are forfeited and the run ends as failed.
        restartable: bool,
    },
    /// A round does not hold any more: nodes wait for the next one, or participants are gone.
    MembershipChanged {
        /// The number of that round.
        round: u64,
        /// The change.
        cause: MembershipCause,
        /// The nodes, and the observation; one sentence.
        reason: String,
    },
    /// Another node has failed for good.
    PeerFailed {
        /// The node.
        node: String,
        /// Its message.
        reason: String,
    },
    /// Another node has ended the run for all nodes.
    RunClosed,
    /// The store of the rendezvous is gone; the driver keeps the error.
    RendezvousLost,
    /// The agent received a signal that ends the run.
    Signal(i32),
    /// This signal, here or on another node, says that the scheduler will take the nodes away.
    Preempted(i32),
    /// The keeper is gone.
    KeeperLost,
    /// Answer to [`GroupOutput::ClearLeftovers`]: none of our processes is left.
    Cleared,
    /// Answer to [`GroupOutput::ExitBarrier`], however it went.
    BarrierPassed,
    /// A deadline may have come.
    TimePassed,
}

/// One worker that is to be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRequest {
    /// Ranks of the worker.
    pub ranks: WorkerRanks,
    /// Variables of these ranks (`RANK`, `MASTER_ADDR` and so on), in addition to the agent's
    /// environment.
    pub environment: Vec<(&'static str, String)>,
    /// How many restarts have been used.
    pub restart_count: u32,
}

/// A command for the driver. Answers are given as inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupOutput {
    /// Join the rendezvous.
    Join {
        /// Number of restarts that have been used.
        restart_count: u32,
    },
    /// Empty the workers' store, so that no worker finds what the last attempt left.
    PurgeStore,
    /// Exchange ranks with the other agents of the round.
    Assign(Round),
    /// Ranks are known; the workers are about to be started one by one.
    Assigned {
        /// The workers of this node.
        workers: Vec<WorkerRanks>,
        /// The round that they belong to.
        round: Round,
        /// Number of restarts that have been used.
        restart_count: u32,
    },
    /// Start one worker.
    Start(StartRequest),
    /// Report that this worker failed: the first of its attempt.
    FirstFailure(WorkerExit),
    /// Report that these workers hang, which is the failure of this attempt.
    Unhealthy {
        /// The workers.
        workers: Vec<LocalRank>,
        /// Whether no restart follows: then it is announced to the other nodes as well.
        last: bool,
    },
    /// The failure is final: announce it to the other nodes at once, before the clean-up here ends.
    Announce(WorkerExit),
    /// Send this signal to the process groups of these workers, also of those that have ended.
    Signal {
        /// The workers.
        workers: Vec<LocalRank>,
        /// The signal.
        signal: i32,
    },
    /// Tell these workers that their node will be taken away; those that handle this signal get it.
    Notify {
        /// The workers.
        workers: Vec<LocalRank>,
        /// The signal.
        signal: i32,
    },
    /// The grace is over: SIGKILL to the process groups of these workers.
    Kill {
        /// Which; none of them has ended.
        workers: Vec<LocalRank>,
    },
    /// The kernel does not end these workers in spite of SIGKILL. They are given up.
    Abandon {
        /// The workers.
        workers: Vec<LocalRank>,
    },
    /// Kill and collect every process that the workers left behind.
    ClearLeftovers,
    /// Leftovers do not end in spite of SIGKILL. They are given up.
    AbandonLeftovers,
    /// The group failed and is restarted.
    Restarting {
        /// `Failed` if a worker has ended, `Unhealthy` if workers hang.
        state: GroupState,
        /// Number of restarts that are left after this one.
        remaining: u32,
        /// `--max-restarts`.
        most: u32,
    },
    /// The workers are stopped, or the attempt given up, to take part in the next round.
    Regrouping {
        /// Why.
        reason: String,
    },
    /// Wait for the other agents at the exit barrier.
    ExitBarrier {
        /// Their number, this one included.
        agents: u32,
    },
    /// The run is over. The last output.
    Finish(Ending),
}

/// The end of a run on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ending {
    /// All workers exited with 0.
    Succeeded {
        /// All exits of the last attempt.
        exits: Vec<WorkerExit>,
    },
    /// All workers exited with 0, and then the round was over before those of the other nodes had
    /// done so: what is left of the run goes on without this node.
    SucceededAlone {
        /// All exits of the last attempt.
        exits: Vec<WorkerExit>,
        /// Why the round was over.
        reason: String,
    },
    /// Workers failed and no restart follows.
    Failed {
        /// All exits of the last attempt in the order in which they were seen.
        exits: Vec<WorkerExit>,
        /// The workers that were found to hang, if that was the failure. Each of them has failed,
        /// also if it exited with 0 after the closing signal, or not at all.
        unhealthy: Vec<LocalRank>,
        /// The reason why no restart follows.
        finality: Finality,
    },
    /// A signal to the agent.
    Signalled {
        /// Its number: of the first, if there were several.
        signal: i32,
        /// False if it came before the first worker was started.
        workers_started: bool,
    },
    /// The scheduler takes the nodes away.
    Preempted {
        /// The signal that said so.
        signal: i32,
        /// The ends of the workers of this attempt that were seen.
        exits: Vec<WorkerExit>,
    },
    /// Another node failed for good.
    PeerFailed {
        /// The node.
        node: String,
        /// Its message.
        reason: String,
    },
    /// Another node ended the run without a reason.
    RunClosed,
    /// The job came to its end without this node, which is no failure.
    NotNeeded,
    /// The keeper was killed.
    KeeperLost,
    /// The agent could not go on; the driver has the error.
    Broken,
    /// The workers' devices cannot be divided; the text is torchrun's.
    Devices(String),
}
