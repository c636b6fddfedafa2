//! The words of the worker group: what happens to it, what it wants done, how it ends.

use super::{Round, WorkerExit, WorkerPlace};
use rdzv_core::rank::{Assignment, LocalRank};

/// The states that the reference names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupState {
    /// Nobody knows. Cannot occur in our agent, because the exits of workers are waited for and none
    /// is ever missed; an agent of somebody else may say so.
    Unknown,
    /// Not started yet, or between two attempts.
    Init,
    /// All workers are running or have exited with 0.
    Healthy,
    /// Workers hang; the group is about to be stopped because of that.
    Unhealthy,
    /// Being stopped.
    Stopped,
    /// All workers exited with 0.
    Succeeded,
    /// Ended in any other way.
    Failed,
}

impl GroupState {
    /// The reference's name.
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
        match self {
            Self::Unknown => 0,
            Self::Init => 1,
            Self::Healthy => 2,
            Self::Unhealthy => 4,
            Self::Stopped => 8,
            Self::Succeeded => 16,
            Self::Failed => 32,
        }
    }

    /// Whether workers are running, as the reference counts it: they do so well or badly, and
    /// nobody has told them to stop.
    pub fn is_running(self) -> bool {
        matches!(self, Self::Healthy | Self::Unhealthy)
    }
}

/// What happened.
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
    /// The agent cannot do what it was asked for; the shell keeps the error. Answer to anything.
    Broken,
    /// Answer to [`GroupOutput::Join`]: the job came to its end without this node.
    NotNeeded,
    /// Workers ended, in this order.
    Exited(Vec<WorkerExit>),
    /// Workers run and make no progress. The group is stopped, as after a failure.
    Unhealthy {
        /// Which.
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
        /// Which nodes, and how that was noticed; one sentence.
        reason: String,
    },
    /// Another node has failed for good.
    PeerFailed {
        /// Which.
        node: String,
        /// What it said.
        reason: String,
    },
    /// Another node has ended the run for everybody.
    RunClosed,
    /// What the rendezvous stands on is gone; the shell keeps the error.
    RendezvousLost,
    /// The agent received a signal that ends the run.
    Signal(i32),
    /// The keeper is gone.
    KeeperLost,
    /// Answer to [`GroupOutput::ClearLeftovers`]: none of our processes is left.
    Cleared,
    /// Answer to [`GroupOutput::ExitBarrier`], however it went.
    BarrierPassed,
    /// A deadline may have come.
    TimePassed,
}

/// What to do. Answers are given as inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupOutput {
    /// Find the other agents.
    Join {
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// Empty the workers' store, so that no worker meets what the last attempt left.
    PurgeStore,
    /// Exchange ranks with the other agents of the round.
    Assign(Round),
    /// Ranks are known; the workers are about to be started one by one.
    Assigned {
        /// The workers of this node.
        workers: Vec<WorkerPlace>,
        /// Where they meet.
        round: Round,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// Start one worker.
    Start {
        /// Its place.
        worker: WorkerPlace,
        /// What its environment has over the agent's, the error file excepted.
        environment: Vec<(&'static str, String)>,
        /// How many restarts have been used.
        restart_count: u32,
    },
    /// Say that this worker failed: the first of its attempt.
    FirstFailure(WorkerExit),
    /// Say that these workers hang, which is the failure of this attempt.
    Unhealthy {
        /// Which.
        workers: Vec<LocalRank>,
        /// Whether no restart follows: then the other nodes have to know, too.
        last: bool,
    },
    /// The failure is final: tell the other nodes, who need not wait until all is cleared here.
    TellOthers(WorkerExit),
    /// Send this signal to the process groups of these workers, also of those that have ended.
    Signal {
        /// Which.
        workers: Vec<LocalRank>,
        /// What.
        signal: i32,
    },
    /// The grace is over: SIGKILL to the process groups of these workers.
    Kill {
        /// Which; none of them has ended.
        workers: Vec<LocalRank>,
    },
    /// The kernel does not end these workers in spite of SIGKILL. They are given up.
    Abandon {
        /// Which.
        workers: Vec<LocalRank>,
    },
    /// Kill and collect every process that the workers left behind.
    ClearLeftovers,
    /// Leftovers do not end in spite of SIGKILL. They are given up.
    AbandonLeftovers,
    /// The group failed and is restarted.
    Restarting {
        /// How many restarts are left after this one.
        remaining: u32,
        /// `--max-restarts`.
        most: u32,
    },
    /// The workers are stopped, or the attempt given up, to take part in the next round.
    Regrouping {
        /// Why.
        reason: String,
    },
    /// Wait for the other agents.
    ExitBarrier {
        /// How many there are, this one among them.
        agents: u32,
    },
    /// The run is over. The last output.
    Finish(Ending),
}

/// How a run ended.
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
    /// Workers failed and no restarts were left.
    Failed {
        /// All exits of the last attempt in the order in which they were seen.
        exits: Vec<WorkerExit>,
        /// The workers that were found to hang, if that was the failure. Each of them has failed,
        /// also if it exited with 0 when it was told to stop, or not at all.
        unhealthy: Vec<LocalRank>,
    },
    /// A signal to the agent.
    Signalled {
        /// Its number: of the first, if there were several.
        signal: i32,
        /// False if it came before the first worker was started.
        workers_started: bool,
    },
    /// Another node failed for good.
    PeerFailed {
        /// Which.
        node: String,
        /// What it said.
        reason: String,
    },
    /// Another node ended the run without saying why.
    RunClosed,
    /// The job came to its end without this node, which is no failure.
    NotNeeded,
    /// The keeper was killed.
    KeeperLost,
    /// The agent could not go on; the shell has the error.
    Broken,
    /// The workers' devices cannot be divided; the text is the reference's.
    Devices(String),
}
