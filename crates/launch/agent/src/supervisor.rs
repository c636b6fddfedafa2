//! The interface between the agent's loop and whatever runs the workers.
//!
//! | supervisor | workers |
//! |---|---|
//! | [`ProcessSupervisor`](crate::processes::ProcessSupervisor) | processes of this machine, whose exits the kernel reports |
//! | [`PolledSupervisor`](crate::api::SimpleElasticAgent) | those of a [`WorkerSupervisor`](crate::api::WorkerSupervisor), which is asked how they are |
//!
//! Calls return what happened, in order. A supervisor never sees the loop, the machine or the
//! rendezvous.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::{Cause, Evidence, Failure, GroupInput, StartRequest, WorkerExit};
use rdzv_core::rank::LocalRank;

use crate::clock::Clock;
use crate::worker::WorkerIdentity;
use crate::{AgentError, AgentEvent};

/// Something that happened to workers.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// For observers only.
    Notice(AgentEvent),
    /// For the worker-group machine.
    Input(GroupInput),
    /// The supervisor cannot do its work any more.
    Broken(AgentError),
}

/// What the loop knows while it waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    /// Whether workers run and nobody stops them: only then they can hang.
    pub(crate) healthy: bool,
    /// How long until the machine has to be called anyway.
    pub(crate) within: Option<Duration>,
}

/// Starts, watches and stops the workers of one node. What has a default is for workers that are
/// processes: those of others leave nothing behind and have no output here.
pub(crate) trait Supervisor {
    /// The first call of a run.
    fn begin(&mut self, _clock: Clock) -> Vec<WorkerEvent> {
        Vec::new()
    }

    /// Forgets the workers of the last attempt, which are gone.
    fn forget(&mut self);

    /// Starts one worker, or accepts it to be started with the others of its attempt by the next
    /// call of [`Supervisor::next`]. Either way [`GroupInput::Started`] is among the events.
    ///
    /// `reserved_port` is the port that the worker will listen on; it is free once this is dropped.
    fn start(
        &mut self,
        clock: Clock,
        request: StartRequest,
        reserved_port: Option<Arc<TcpListener>>,
    ) -> Result<Vec<WorkerEvent>, AgentError>;

    /// Waits until something happens to workers. May be dropped while waiting without losing
    /// anything. Is ready at once only for exits: after anything else other tasks come first.
    async fn next(&mut self, clock: Clock, watch: Watch) -> Vec<WorkerEvent>;

    /// Sends workers a signal that ends them; those that run after `grace` will be killed.
    fn signal(
        &mut self,
        clock: Clock,
        workers: &[LocalRank],
        signal: i32,
        grace: Duration,
    ) -> Vec<WorkerEvent>;

    /// Kills workers whose grace is over.
    fn kill(&mut self, _clock: Clock, _workers: &[LocalRank]) -> Vec<WorkerEvent> {
        Vec::new()
    }

    /// Gives up workers that do not end although they were killed.
    fn abandon(&mut self, _workers: &[LocalRank]) {}

    /// Kills whatever workers have left behind. [`GroupInput::Cleared`] follows, here or later.
    fn kill_leftovers(&mut self) -> Vec<WorkerEvent> {
        vec![GroupInput::Cleared.into()]
    }

    /// Gives up leftovers that do not end although they were killed.
    fn abandon_leftovers(&mut self) {}

    /// Suspends all workers (SIGSTOP).
    fn suspend(&mut self) {}

    /// Continues all workers (SIGCONT).
    fn resume(&mut self) {}

    /// Sends all workers a signal whose meaning is their own.
    fn pass_on(&mut self, _signal: i32) {}

    /// Tells workers that the scheduler will take the node away, by this signal if they handle it.
    fn notify(&mut self, _workers: &[LocalRank], _signal: i32) {}

    /// The first failure of an attempt.
    fn report_failure(&mut self, _exit: &WorkerExit) {}

    /// The workers of the attempt, by local rank.
    fn workers(&self) -> Vec<WorkerIdentity>;

    /// Whether a worker was killed for a fault of its own: its exit is a failure, whatever it is.
    fn kill_cause(&self, worker: LocalRank) -> Option<&Cause>;

    /// What is known of a worker that has ended, or that will, besides its exit.
    fn evidence(&self, worker: LocalRank) -> Option<Evidence>;

    /// A cause in the surroundings of a worker whose exit and evidence explain nothing.
    fn probe(&self, _exit: &WorkerExit) -> Option<Cause> {
        None
    }

    /// A failure of a worker in one sentence, for people at other nodes.
    fn sentence(&self, failure: &Failure) -> String {
        failure.sentence()
    }

    /// Ends what still runs, and returns when it is gone.
    fn shutdown(&mut self, signal: i32);

    /// Waits until everything that ended workers have written to the agent's stderr is captured.
    async fn captured(&mut self) {}

    /// Waits until the output of all workers is on the console.
    async fn drained(&mut self) {}

    /// Bytes of the workers' output that are known not to be on the console.
    fn unshown(&self) -> u64 {
        0
    }

    /// Removes what the run does not leave behind.
    fn remove_files(&mut self, _succeeded: bool) {}

    /// The last call of a run.
    fn end(&mut self, _clock: Clock) -> Vec<WorkerEvent> {
        Vec::new()
    }
}

impl From<AgentEvent> for WorkerEvent {
    fn from(event: AgentEvent) -> Self {
        Self::Notice(event)
    }
}

impl From<GroupInput> for WorkerEvent {
    fn from(input: GroupInput) -> Self {
        Self::Input(input)
    }
}
