//! The words of the worker group: what happens to it, what it wants done, how it ends.

use super::{Round, WorkerExit, WorkerPlace};
use crate::rank::{Assignment, LocalRank};

/// The states that the reference names. Its `UNKNOWN` cannot occur here, because the exits of
/// workers are waited for and none is ever missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupState {
    /// Not started yet, or between two attempts.
    Init,
    /// All workers are running or have exited with 0.
    Healthy,
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
            Self::Init => "INIT",
            Self::Healthy => "HEALTHY",
            Self::Stopped => "STOPPED",
            Self::Succeeded => "SUCCEEDED",
            Self::Failed => "FAILED",
        }
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
