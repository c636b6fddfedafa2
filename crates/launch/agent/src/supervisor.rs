//! Interface between the agent's loop and the code that runs the workers.
//!
//! | supervisor | workers |
//! |---|---|
//! | [`ProcessSupervisor`](crate::processes::ProcessSupervisor) | processes of this machine, whose exits the kernel reports |
//! | [`PolledSupervisor`](crate::api::SimpleElasticAgent) | workers of a [`WorkerSupervisor`](crate::api::WorkerSupervisor), which the agent polls |
//!
//! Calls return what happened, in order. A supervisor never sees the loop, the machine or the
//! rendezvous.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::{Cause, Evidence, Failure, GroupInput, StartRequest, WorkerExit};
use rdzv_core::rank::LocalRank;
use rdzv_core::time::Mono;

use crate::clock::Clock;
use crate::hang::Peers;
use crate::worker::WorkerIdentity;
use crate::{AgentError, AgentEvent};

/// Event that a supervisor reports about its workers.
#[derive(Debug)]
pub(crate) enum WorkerEvent {
    /// Event for observers only.
    Notice(AgentEvent),
    /// Input for the worker-group machine.
    Input(GroupInput),
    /// The supervisor cannot continue.
    Broken(AgentError),
}

/// State of the loop that a waiting supervisor needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Watch {
    /// `true` if workers run, and are neither being stopped nor suspended.
    /// Only then can they hang.
    pub(crate) healthy: bool,
    /// Time until the next scheduled call of the machine.
    pub(crate) within: Option<Duration>,
}

/// Starts, watches and stops the workers of one node.
/// Except for [`Supervisor::sentence`], methods with a default matter only for workers that are
/// processes. Other workers leave nothing behind and have no output here.
pub(crate) trait Supervisor {
    /// Begins a run; this is the first call.
    fn begin(&mut self, _clock: Clock) -> Vec<WorkerEvent> {
        Vec::new()
    }

    /// Forgets the exited workers of the previous attempt.
    fn forget(&mut self);

    /// Receives the nodes of the round, before the first worker starts.
    fn joined(&mut self, _peers: Peers) {}

    /// Starts one worker, or accepts it for a later start.
    /// [`Supervisor::next`] then starts all accepted workers of the attempt together. In both cases
    /// [`GroupInput::Started`] is among the events.
    ///
    /// `reserved_port` reserves the port that the worker will listen on. Dropping it frees the
    /// port.
    fn start(
        &mut self,
        clock: Clock,
        request: StartRequest,
        reserved_port: Option<Arc<TcpListener>>,
    ) -> Result<Vec<WorkerEvent>, AgentError>;

    /// Sends a worker the ranks and variables of the next round.
    /// Its process continues.
    fn go(&mut self, _now: Mono, _request: StartRequest) {}

    /// Requests that workers leave their function.
    fn abort(&mut self, _workers: &[LocalRank], _reason: &str) {}

    /// Returns the ranks that exited in this round.
    /// It is empty unless workers recover in their processes.
    fn lost(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Kills what these exited workers left behind.
    fn discard(&mut self, _workers: &[LocalRank]) {}

    /// Requests that a worker exits with the exception that its function raised.
    fn fail(&mut self, _worker: LocalRank) {}

    /// Waits for the next events of the workers.
    /// Cancel-safe: the caller may drop the future without losing an event. The implementation lets
    /// other tasks run between two searches for an event.
    async fn next(&mut self, clock: Clock, watch: Watch) -> Vec<WorkerEvent>;

    /// Sends workers a signal that ends them.
    /// The caller kills the workers that still run after the shutdown timeout.
    fn signal(
        &mut self,
        clock: Clock,
        workers: &[LocalRank],
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Vec<WorkerEvent>;

    /// Kills workers whose shutdown timeout or abort timeout has passed.
    fn kill(&mut self, _clock: Clock, _workers: &[LocalRank]) -> Vec<WorkerEvent> {
        Vec::new()
    }

    /// Stops waiting for workers that do not exit after SIGKILL.
    fn abandon(&mut self, _workers: &[LocalRank]) {}

    /// Kills all processes that workers have left behind.
    /// [`GroupInput::Cleared`] follows, in the result or later.
    fn kill_leftovers(&mut self) -> Vec<WorkerEvent> {
        vec![GroupInput::Cleared.into()]
    }

    /// Stops waiting for leftovers that do not exit after SIGKILL.
    fn abandon_leftovers(&mut self) {}

    /// Suspends all workers (SIGSTOP).
    fn suspend(&mut self) {}

    /// Continues all workers (SIGCONT).
    fn resume(&mut self) {}

    /// Continues the agent's processes other than workers, such as the fork server.
    fn resume_others(&mut self) {}

    /// Sends all workers a signal whose meaning only the workers know.
    fn pass_on(&mut self, _signal: i32) {}

    /// Notifies workers that the scheduler will take the node away.
    /// The notice is this signal, sent to workers that handle it.
    fn notify(&mut self, _workers: &[LocalRank], _signal: i32) {}

    fn report_failure(&mut self, _exit: &WorkerExit) {}

    /// Returns the workers of the attempt, by local rank.
    fn workers(&self) -> Vec<WorkerIdentity>;

    /// Returns the fault for which the agent killed a worker, if there is one.
    /// The exit of such a worker is a failure, whatever its code.
    fn kill_cause(&self, worker: LocalRank) -> Option<&Cause>;

    /// Returns all facts about a worker except its exit.
    /// The worker has exited or will exit.
    fn evidence(&self, worker: LocalRank) -> Option<Evidence>;

    /// Returns an external cause of an exit that the evidence does not explain.
    fn probe(&self, _exit: &WorkerExit) -> Option<Cause> {
        None
    }

    /// Returns one sentence about a worker's failure for the users of other nodes.
    fn sentence(&self, failure: &Failure) -> String {
        failure.sentence()
    }

    /// Stops all running workers, and returns after their exit.
    fn shutdown(&mut self, signal: i32);

    /// Waits until all stderr output of exited workers is captured.
    async fn captured(&mut self) {}

    /// Waits until the output of all workers is on the console.
    async fn drained(&mut self) {}

    /// Returns the number of output bytes that did not reach the console.
    fn unshown(&self) -> u64 {
        0
    }

    /// Removes the files that do not outlive the run.
    fn remove_files(&mut self, _succeeded: bool) {}

    /// Ends a run; this is the last call.
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
