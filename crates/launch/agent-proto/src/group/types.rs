//! Types of the worker group: inputs, outputs and endings.

use std::time::Duration;

use super::{Finality, WorkerExit};
use rdzv_core::rank::{Assignment, GroupRank, LocalRank, Rank, RoleRank};

/// A change among the nodes of a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MembershipCause {
    /// Nodes are lost, or the other nodes consider this one lost.
    /// The loss may make workers on other nodes fail.
    Lost,
    /// Workers of another node failed, and its agent has used a restart of the job.
    Restarted,
    /// Nodes wait to join.
    Waiting,
}

/// Result of the rendezvous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Round {
    /// Number of the round; the same for all agents.
    pub number: u64,
    /// Rank of this agent.
    pub group_rank: GroupRank,
    /// Number of participating agents.
    pub group_world_size: u32,
    /// Ranks of workers whose node was not in the last round.
    ///
    /// Empty in the first round, if the backend does not know them, and if there are too many.
    pub replaced: Vec<u32>,
    /// Address of the workers' store.
    pub master: Master,
    /// Longest time until this node learns that another node is lost.
    /// In a dynamic round of several nodes, the last failure of the restart budget waits this long
    /// for such an explanation.
    pub losses_known_within: Duration,
    /// `true` if the rendezvous provides the exit barrier.
    /// After a loss, it then answers each node that waits there.
    pub answers_barrier: bool,
}

/// Address of the workers' store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// `MASTER_ADDR`.
    pub addr: String,
    /// `MASTER_PORT`.
    pub port: u16,
    /// `true` if an agent hosts the store there.
    /// Otherwise the worker with rank 0 hosts it.
    pub hosted_by_agent: bool,
}

/// Ranks of one worker, and the sizes of the groups in which they count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkerRanks {
    /// Rank within the node.
    pub local_rank: LocalRank,
    /// Rank in the job.
    pub rank: Rank,
    /// Number of workers in the job.
    pub world_size: u32,
    /// Rank among the workers of the same role.
    pub role_rank: RoleRank,
    /// Number of workers of the same role.
    pub role_world_size: u32,
}

impl WorkerRanks {
    /// Returns the ranks of the workers of one node.
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

/// States of a worker group, as torchelastic defines them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// Unknown state, which our agent never reports.
    /// Other supervisors may report this state.
    Unknown = 0,
    /// Not started yet, joining a round, or starting workers.
    Init = 1,
    /// All workers are running or have exited with 0.
    Healthy = 2,
    /// Workers hang, and the group is stopping because of that.
    Unhealthy = 4,
    /// Being stopped, or waiting for the next attempt after a stop.
    Stopped = 8,
    /// All workers exited with 0.
    Succeeded = 16,
    /// Ended in any other way.
    Failed = 32,
}

impl GroupState {
    /// Returns torchelastic's name of the state.
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

    /// Returns the number that torchelastic's first agents used for the state.
    /// Each state but `Unknown` is one bit, so a sum represents a set of states.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// `true` if workers are running in the sense of torchelastic.
    /// This includes an unhealthy group.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Healthy | Self::Unhealthy)
    }
}

/// An event that the group handles.
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
    /// The agent failed to carry out an output, or to watch the workers.
    /// The driver keeps the error.
    Broken,
    /// Answer to [`GroupOutput::Join`]: the job ended without this node.
    NotNeeded,
    /// Workers exited, in this order.
    Exited(Vec<WorkerExit>),
    /// The worker can recover: it has connected to the control socket.
    Recoverable(LocalRank),
    /// The worker has left its function, and can call it again in the next round.
    Ready(LocalRank),
    /// As [`GroupInput::Ready`], because the function raised an exception.
    /// A failure elsewhere may be the reason.
    Raised(LocalRank),
    /// Workers hang, which counts as a failure.
    /// The group stops all its workers, also with `--in-process`.
    Unhealthy {
        /// The workers.
        workers: Vec<LocalRank>,
        /// Reason to forfeit the remaining restarts; `None` if the group may restart.
        is_final: Option<Finality>,
    },
    /// A round is superseded.
    /// Nodes wait for the next round, or participants restart or are lost.
    MembershipChanged {
        /// The number of that round.
        round: u64,
        /// The change.
        cause: MembershipCause,
        /// One sentence that names the nodes and the observation.
        reason: String,
    },
    /// In this round, the loss of a node becomes known within this time.
    /// The coordinator is missing, or it has just been replaced.
    LossesKnownWithin(Duration),
    /// Another node has failed and will not restart.
    PeerFailed {
        /// The node.
        node: String,
        /// The node's message.
        reason: String,
    },
    /// Another node has ended the run for all nodes.
    RunClosed,
    /// The rendezvous is lost; the driver keeps the error.
    RendezvousLost,
    /// The agent received a signal that ends the run.
    Signal(i32),
    /// The scheduler will take the nodes away.
    /// The scheduler announced this with a signal, to this node or another one.
    Preempted(i32),
    /// The keeper or the guard has exited.
    KeeperLost,
    /// Answer to [`GroupOutput::ClearLeftovers`]: no worker process is left.
    Cleared,
    /// Answer to [`GroupOutput::ExitBarrier`], on success and on failure.
    /// The exception is a failure that [`GroupInput::BarrierTimeout`] reports.
    BarrierPassed,
    /// Answer to [`GroupOutput::ExitBarrier`]: the wait reached its limit.
    /// The text names the limit.
    BarrierTimeout(String),
    /// Time has passed, so a deadline may be due.
    TimePassed,
}

/// Request to start one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRequest {
    /// Ranks of the worker.
    pub ranks: WorkerRanks,
    /// Variables of these ranks (`RANK`, `MASTER_ADDR` and so on).
    /// The worker gets them in addition to the environment of the configuration.
    pub environment: Vec<(&'static str, String)>,
    /// Number of restarts that this node has used.
    pub restart_count: u32,
}

/// A command for the driver, which answers with inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupOutput {
    /// Join the rendezvous.
    Join {
        /// Number of restarts that this node has used.
        restart_count: u32,
    },
    /// Empty the workers' store, so that no worker finds earlier data.
    PurgeStore,
    /// Exchange ranks with the other agents of the round.
    Assign(Round),
    /// Report the ranks of the workers that are about to start.
    Assigned {
        /// The workers of this node.
        workers: Vec<WorkerRanks>,
        /// The round that they belong to.
        round: Round,
        /// Number of restarts that this node has used.
        restart_count: u32,
    },
    /// Start one worker.
    Start(StartRequest),
    /// Send a worker of the previous round the ranks and variables of this one.
    /// The worker continues in the same process.
    Go(StartRequest),
    /// Request that these workers leave their function.
    /// The answer of each is [`GroupInput::Ready`], [`GroupInput::Raised`] or its exit.
    Abort {
        /// The workers.
        workers: Vec<LocalRank>,
        /// The reason, for the workers.
        reason: String,
    },
    /// Kill the processes that these workers left behind.
    /// The workers have exited, or the group has stopped waiting for them.
    Discard {
        /// The workers.
        workers: Vec<LocalRank>,
    },
    /// Request that this worker exits with the exception that its function raised.
    Fail(LocalRank),
    /// Report this failure of a worker, the first one of its attempt.
    FirstFailure(WorkerExit),
    /// Report that these workers hang, which is the failure of this attempt.
    Unhealthy {
        /// The workers.
        workers: Vec<LocalRank>,
        /// `true` if no restart follows.
        /// Then announce the failure to the other nodes as well.
        last: bool,
    },
    /// Announce this final failure to the other nodes.
    /// Do so without waiting for the clean-up here.
    Announce(WorkerExit),
    /// Send this closing signal to the process groups of these workers.
    /// Some of the workers may have exited.
    Signal {
        /// The workers.
        workers: Vec<LocalRank>,
        /// The signal.
        signal: i32,
    },
    /// Notify these workers that the scheduler will take their node away.
    /// Send this signal to those that handle it.
    Notify {
        /// The workers.
        workers: Vec<LocalRank>,
        /// The signal.
        signal: i32,
    },
    /// Send SIGKILL to the process groups of these workers.
    /// The shutdown timeout, or the abort timeout, has expired.
    Kill {
        /// The workers; none of them has exited.
        workers: Vec<LocalRank>,
    },
    /// Stop waiting for these workers, which SIGKILL did not end.
    /// The kernel or a debugger holds them.
    Abandon {
        /// The workers.
        workers: Vec<LocalRank>,
    },
    /// Kill and reap every process that the workers left behind.
    ClearLeftovers,
    /// Stop waiting for leftovers that do not exit after SIGKILL.
    AbandonLeftovers,
    /// Report that the group failed and restarts.
    Restarting {
        /// `Unhealthy` if workers hang, otherwise `Failed`.
        state: GroupState,
        /// Number of restarts that are left after this one.
        remaining: u32,
        /// `--max-restarts`.
        most: u32,
    },
    /// Report that the node leaves this attempt to participate in the next round.
    /// If workers run, the group stops them or makes them leave their function.
    Regrouping {
        /// The reason.
        reason: String,
    },
    /// Wait for the other agents at the exit barrier.
    ExitBarrier {
        /// Number of agents, including this one.
        agents: u32,
    },
    /// End the run. This is the last output.
    Finish(GroupEnding),
}

/// Outcome of a run on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupEnding {
    /// All workers exited with 0.
    Succeeded {
        /// All exits of the last attempt.
        exits: Vec<WorkerExit>,
    },
    /// All workers exited with 0, but not all nodes reached the exit barrier.
    /// The round ended before, or the wait reached its limit. The run may continue without this
    /// node.
    SucceededAlone {
        /// All exits of the last attempt.
        exits: Vec<WorkerExit>,
        /// Reason for the end of the round or of the wait.
        reason: String,
    },
    /// Workers failed and no restart follows.
    Failed {
        /// All exits of the last attempt in the order in which the agent saw them.
        exits: Vec<WorkerExit>,
        /// Workers that hung, if the hang was the failure.
        /// Each of them counts as failed, even if it exited with 0 after the closing signal or did
        /// not exit at all.
        unhealthy: Vec<LocalRank>,
        /// The reason why no restart follows.
        finality: Finality,
    },
    /// The agent received a signal that ends the run.
    Signalled {
        /// Number of the signal, or of the first one if there were several.
        signal: i32,
        /// `false` if this agent has not started any worker.
        workers_started: bool,
    },
    /// The scheduler took the nodes away.
    Preempted {
        /// The signal with which the scheduler announced this.
        signal: i32,
        /// Exits of the last attempt that the agent saw.
        exits: Vec<WorkerExit>,
    },
    /// Another node failed and did not restart.
    PeerFailed {
        /// The node.
        node: String,
        /// The node's message.
        reason: String,
    },
    /// Another node ended the run without a stated reason.
    RunClosed,
    /// The job ended without this node. That is not a failure.
    NotNeeded,
    /// The keeper or the guard was killed.
    KeeperLost,
    /// The agent cannot continue; the driver has the error.
    Broken,
    /// Too few devices for the workers; the text is torchrun's.
    Devices(String),
}
