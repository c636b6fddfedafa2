//! Stream of all events of a run.
//! Observers read it; they cannot send anything back to the agent.

use std::time::Duration;

use rdzv_agent_proto::goodput::StepChange;
use rdzv_agent_proto::group::GroupState;
pub use rdzv_agent_proto::hang::straggler::{Lateness, StragglerChange};
use rdzv_agent_proto::restart::RestartTimes;
use rdzv_core::rank::GroupRank;
use rdzv_core::time::Wall;

use crate::outcome::{Cause, Exit, Failure, Verdict};
use crate::round_store::RoundStore;

pub use crate::hang::{HangReport, WatchdogAction, WatchdogTimer};
pub use crate::worker::{WorkerFiles, WorkerIdentity};
pub use rdzv_rendezvous::{GroupEvent, NodeState};

/// Target of the log lines that have torchelastic's texts, or replace them.
/// Each such line describes something that is an event too.
pub const TORCHELASTIC: &str = "torchelastic";

/// Event of a run.
///
/// To add a variant: give it the field `at`, then fix each match that the compiler reports.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum AgentEvent {
    /// The agent begins the rendezvous, or the check of this node before it.
    RendezvousBegan {
        /// Time of the event.
        at: Wall,
        /// Number of restarts that this node has used.
        restart_count: u32,
        /// Number of restarts that all nodes have used, as far as this node knows.
        job_restarts: u32,
    },
    /// A dynamic rendezvous reported an event of this node or another one.
    RendezvousNotice {
        /// Time of the event.
        at: Wall,
        /// State of this node in the rendezvous.
        state: NodeState,
        /// Message of one sentence.
        message: String,
        /// Endpoint of the rendezvous; empty if unknown.
        endpoint: String,
        /// Rank of this node, if it has one.
        rank: Option<GroupRank>,
        /// Error that the message describes, if any.
        error: Option<String>,
    },
    /// The watchdog started or stopped, or acted on a timer of a worker.
    Watchdog {
        /// Time of the event.
        at: Wall,
        /// Action of the watchdog.
        action: WatchdogAction,
        /// Timer that the action concerns, if any.
        timer: Option<WatchdogTimer>,
    },
    /// A rendezvous completed or failed.
    Rendezvous {
        /// Time of the event.
        at: Wall,
        /// Duration of the rendezvous.
        took: Duration,
        /// Rank and number of agents, or the reason of the failure.
        result: Result<(GroupRank, u32), String>,
        /// Number of restarts that this node has used.
        restart_count: u32,
    },
    /// Ranks were assigned.
    RanksAssigned {
        /// Time of the event.
        at: Wall,
        /// Duration of the assignment.
        took: Duration,
        /// Number of the round; the same for all agents.
        round: u64,
        /// Rank of this agent.
        group_rank: GroupRank,
        /// Number of agents in the round.
        group_world_size: u32,
        /// Workers of this node.
        workers: Vec<WorkerIdentity>,
        /// Address of the workers' store.
        master_addr: String,
        /// Port of the workers' store.
        master_port: u16,
        /// Store that the agents of the round share.
        store: RoundStore,
        /// Number of restarts that this node has used.
        restart_count: u32,
    },
    /// The agent started a worker.
    WorkerStarted {
        /// Time of the event.
        at: Wall,
        /// Worker that started.
        worker: WorkerIdentity,
        /// Files that the worker's output goes to.
        files: WorkerFiles,
        /// Number of restarts that this node has used.
        restart_count: u32,
    },
    /// A worker exited.
    WorkerExited {
        /// Time of the event.
        at: Wall,
        /// Worker that exited.
        worker: WorkerIdentity,
        /// Exit code or signal.
        exit: Exit,
        /// `true` if the agent had sent the running worker a closing signal or SIGKILL.
        /// `false` if the reason for that signal was a fault of this worker, such as a hang.
        stopped_by_agent: bool,
    },
    /// The agent sent a closing signal, or SIGKILL, to a worker's process group.
    WorkerSignalled {
        /// Time of the event.
        at: Wall,
        /// Process id of the worker.
        pid: u32,
        /// Signal number.
        signal: i32,
        /// `true` if this is the SIGKILL after the shutdown or abort timeout.
        forced: bool,
    },
    /// The group failed, and the agent restarts it.
    Restarting {
        /// Time of the event.
        at: Wall,
        /// `Unhealthy` if workers hang, otherwise `Failed`.
        state: GroupState,
        /// Number of restarts that are left after this one.
        remaining: u32,
        /// Value of `--max-restarts`.
        most: u32,
        /// First failure of the attempt, if known.
        failure: Option<Box<Failure>>,
    },
    /// The agent leaves the current attempt and joins the next round.
    Regrouping {
        /// Time of the event.
        at: Wall,
        /// One sentence about the reason, such as nodes that joined or left.
        reason: String,
    },
    /// The coordinator, its voters or the fence of a dynamic rendezvous changed.
    Group {
        /// Time of the event.
        at: Wall,
        /// Message of one sentence.
        message: String,
        /// Same event in a form for programs.
        event: GroupEvent,
    },
    /// This agent replaces one that was killed or that panicked.
    AgentRestarted {
        /// Time at which the guard noticed the exit of the previous agent.
        at: Wall,
        /// Number of agents of this node that were killed or panicked until now.
        restarts: u32,
        /// One sentence about the exit of the previous agent.
        reason: String,
    },
    /// The state of the worker group changed.
    StateChanged {
        /// Time of the event.
        at: Wall,
        /// New state.
        state: GroupState,
        /// Number of restarts that this node has used.
        restart_count: u32,
    },
    /// Workers hang.
    /// The agent reports a group without progress once, until the group makes progress.
    Hang {
        /// Time of the event.
        at: Wall,
        /// Workers that hang, the reason, stacks of this node, and the action.
        report: HangReport,
    },
    /// A reported hang is over.
    /// The group makes progress again, or all workers without a heartbeat have sent one.
    HangOver {
        /// Time of the event.
        at: Wall,
    },
    /// A rank is slower than the other ranks of the job, or no longer.
    /// Only the agent of node 0 reports this, with `--stragglers`.
    Straggler {
        /// Time of the event.
        at: Wall,
        /// Rank and evidence.
        change: StragglerChange,
    },
    /// The user suspended the job (Ctrl-Z).
    Suspended {
        /// Time of the event.
        at: Wall,
    },
    /// The job continues after [`AgentEvent::Suspended`].
    Continued {
        /// Time of the event.
        at: Wall,
    },
    /// A worker reported the first step of the attempt, or the first new step.
    /// Steps that an earlier attempt has completed are not new.
    Step {
        /// Time of the event.
        at: Wall,
        /// Worker that reported the step.
        worker: WorkerIdentity,
        /// The step, and the end of the repeated steps.
        change: StepChange,
        /// Time since the worker wrote the heartbeat, if the worker wrote a time.
        age: Duration,
    },
    /// All workers run again after a restart.
    Restarted {
        /// Time of the event.
        at: Wall,
        /// Times of the restart.
        restart: Box<RestartTimes>,
    },
    /// The agent received a signal, or another request, to stop.
    SignalReceived {
        /// Time of the event.
        at: Wall,
        /// Signal number.
        signal: i32,
    },
    /// The scheduler announced that it will take nodes of the job away.
    Preempted {
        /// Time of the event.
        at: Wall,
        /// Number of the signal with which the scheduler gives notice.
        signal: i32,
        /// Group rank of the node that received the signal; `None` for this node.
        by: Option<GroupRank>,
        /// Time that workers have to exit after the notice.
        shutdown_timeout: Duration,
    },
    /// Output of workers did not reach the console before the run was stopped.
    /// The console's reader had not read this output.
    OutputDropped {
        /// Time of the event.
        at: Wall,
        /// Number of dropped bytes, as far as is known.
        bytes: u64,
    },
    /// The run ended for one worker; sent once per worker at the end of the run.
    /// Not sent if a request to stop ended the run, or an error other than a failure of this node's
    /// workers.
    WorkerFinal {
        /// Time of the event.
        at: Wall,
        /// Worker that the event concerns.
        worker: WorkerIdentity,
        /// `SUCCEEDED`, `FAILED` or `TERMINATED`.
        state: &'static str,
        /// Exit of the worker, if known.
        exit: Option<Exit>,
        /// Cause of the failure, if the worker failed.
        cause: Option<Cause>,
        /// Raw error text (JSON of the error file), if the worker wrote one.
        raw_error: Option<String>,
    },
    /// The verdict on the failures of the run, also if there were none.
    Verdict {
        /// Time of the event.
        at: Wall,
        /// First failure and its consequences.
        verdict: Box<Verdict>,
    },
    /// The run ended for the agent.
    AgentFinal {
        /// Time of the event.
        at: Wall,
        /// `SUCCEEDED` if the loop returned, `FAILED` on an error or a signal.
        /// The state is `SUCCEEDED` even if workers failed.
        state: &'static str,
        /// Duration of the run.
        took: Duration,
        /// `true` if the workers succeeded, or if the job ended without this node.
        /// Torchelastic has no such field.
        workers_succeeded: bool,
        /// Error with which the agent ended, if any.
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
            | Self::Straggler { at, .. }
            | Self::Suspended { at }
            | Self::Continued { at }
            | Self::Step { at, .. }
            | Self::Restarted { at, .. }
            | Self::SignalReceived { at, .. }
            | Self::Preempted { at, .. }
            | Self::OutputDropped { at, .. }
            | Self::WorkerFinal { at, .. }
            | Self::Verdict { at, .. }
            | Self::AgentFinal { at, .. } => *at,
        }
    }
}
