//! Agent's loop, which passes each event to the worker-group machine.
//! The loop waits for the next event, and applies what the machine decides.
//!
//! ```text
//!   Supervisor ── WorkerEvent ──┐                          ┌─► Supervisor (start, signal, kill)
//!   Requests ──── Request ──────┼─► WorkerGroup ─ output ──┼─► RendezvousHandle (join, assign)
//!   Rendezvous ── Answer ───────┘    (decides)             └─► AgentEvent ─► observer
//!                     └──────► FailureAnalysis ─► Outcome, Verdict
//! ```

mod awaiting;
mod ending;
mod fencing;
mod preemption;
mod restarts;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::{
    GroupEnding, GroupInput, GroupOutput, GroupState, Round, StartRequest, WorkerGroupMachine,
    WorkerRanks,
};
use rdzv_agent_proto::restart::RestartLedger;
use rdzv_core::machine::Machine;
use rdzv_core::rank::LocalRank;
use rdzv_core::rules::Rules;
use rdzv_core::time::Mono;
use rdzv_rendezvous::fence::{self, Fence};
use rdzv_rendezvous::{AgentNote, Change, RendezvousError, RendezvousEvent};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::sleep_until;
use tracing::{error, info, warn};

use self::awaiting::Awaiting;
use self::fencing::kill_after;
use self::preemption::Preemption;
use crate::clock::{Clock, or_forever};
use crate::config::RendezvousPlan;
use crate::event::TORCHELASTIC;
use crate::failure::{FailureAnalysis, hang_sentence};
use crate::hang::Peers;
use crate::keeper::last_death;
use crate::rendezvous::{Answer, Joined, RendezvousHandle};
use crate::requests::{Request, Requests};
use crate::signals::{JobRequest, stop_this_process};
use crate::supervisor::{Supervisor, Watch, WorkerEvent};
use crate::worker::WorkerIdentity;
use crate::{AgentConfig, AgentError, AgentEvent, Outcome};
use rdzv_rendezvous::NodeState;

/// Agent of one node: a machine that decides, and the parts that act.
pub(crate) struct AgentLoop<'o, S> {
    config: Arc<AgentConfig>,
    observer: &'o mut dyn FnMut(&AgentEvent),
    clock: Clock,
    group: WorkerGroupMachine,
    /// State of the group in the last event about it.
    emitted_state: GroupState,
    /// Queued inputs of the machine, handled before external events.
    inputs: VecDeque<GroupInput>,
    supervisor: S,
    requests: Requests,
    rendezvous: RendezvousHandle,
    answers: UnboundedReceiver<Answer>,
    failures: FailureAnalysis,
    restarts: RestartLedger,
    /// Time at which the current rendezvous or exchange began.
    step_began: Mono,
    /// Error that the machine knows only as "broken".
    error: Option<AgentError>,
    ending: Option<GroupEnding>,
    /// `true` if this agent has received a request to stop.
    /// Another cause may have ended the run before.
    stop_requested: bool,
    /// `true` if this node has announced its permanent failure to the other nodes.
    announced: bool,
    preemption: Preemption,
    awaiting: Awaiting,
    /// Fence that suspends the workers while this node has no lease.
    fence: Fence,
    /// End of the workers' lease, as recorded for the guard.
    noted_lease: Option<Mono>,
    /// Time at which the workers were suspended, for observers.
    stands_since: Option<Mono>,
    /// `Some(true)` if rounds have a fence; `None` if none has had one.
    has_fence: Option<bool>,
    round: Option<u64>,
}

impl<'o, S: Supervisor> AgentLoop<'o, S> {
    pub(crate) fn new(
        config: Arc<AgentConfig>,
        supervisor: S,
        requests: Requests,
        observer: &'o mut dyn FnMut(&AgentEvent),
    ) -> Self {
        let group = WorkerGroupMachine::new(config.group_spec());
        let (sender, answers) = unbounded_channel();
        let rendezvous = RendezvousHandle::new(&config, sender);
        Self {
            failures: FailureAnalysis::new(&config, rendezvous.group_rank()),
            fence: Fence::new(kill_after(&config), Rules::default()),
            restarts: RestartLedger::default(),
            noted_lease: None,
            stands_since: None,
            has_fence: None,
            round: None,
            config,
            observer,
            clock: Clock::new(),
            emitted_state: group.state(),
            group,
            inputs: VecDeque::from([GroupInput::Begin]),
            supervisor,
            requests,
            rendezvous,
            answers,
            step_began: Mono::ZERO,
            error: None,
            ending: None,
            stop_requested: false,
            announced: false,
            preemption: Preemption::default(),
            awaiting: Awaiting::default(),
        }
    }

    pub(crate) async fn run(mut self) -> Outcome {
        let events = self.supervisor.begin(self.clock);
        self.take(events);
        self.emit_restart();
        loop {
            let Some(input) = self.inputs.pop_front() else {
                self.wait().await;
                continue;
            };
            self.failures.observe(&input);
            self.group.handle(self.clock.now(), input);
            while let Some(output) = self.group.poll_output() {
                self.apply(output);
            }
            self.emit_state();
            let now = self.clock.now().mono;
            self.awaiting.update(now, self.group.awaits());
            if let Some(ending) = self.ending.take() {
                return self.end(ending).await;
            }
        }
    }

    /// Emits the reason why this agent replaces one that died, if it does.
    fn emit_restart(&mut self) {
        let Some(kept) = &self.config.rendezvous.kept else {
            return;
        };
        if let Some((at, restart)) = last_death(kept) {
            let restarts = kept.note().deaths;
            warn!("[{}] the agent {restart}", self.config.identity.role);
            self.emit(AgentEvent::AgentRestarted {
                at,
                restarts,
                reason: format!("the agent {restart}"),
            });
        }
    }

    fn note(&self, change: impl FnOnce(&mut AgentNote)) {
        if let Some(kept) = &self.config.rendezvous.kept {
            kept.update_note(change);
        }
    }

    /// Waits for the next event.
    ///
    /// Exits of workers take precedence. They happened before a simultaneous event could make the
    /// agent act on the workers.
    async fn wait(&mut self) {
        let clock = self.clock;
        let deadline = self.group.deadline();
        let watch = Watch {
            healthy: self.group.state() == GroupState::Healthy && !self.fence.is_closed(),
            within: deadline.map(|at| at.since(clock.now().mono)),
        };
        let at =
            |deadline: Option<Mono>| or_forever(deadline.map(|at| sleep_until(clock.instant(at))));
        tokio::select! {
            biased;
            events = self.supervisor.next(clock, watch) => self.take(events),
            request = self.requests.next() => self.requested(request).await,
            Some(answer) = self.answers.recv() => {
                let input = self.answered(answer);
                self.inputs.extend(input);
            }
            () = at(deadline) => self.inputs.push_back(GroupInput::TimePassed),
            () = fencing::due(self.fence.deadline()) => self.fence(fence::Input::Tick),
            () = at(self.awaiting.due()) => {
                let workers = self.supervisor.workers();
                self.awaiting.remind(clock.now().mono, &workers);
            }
        }
    }

    /// Handles the events of the supervisor.
    fn take(&mut self, events: Vec<WorkerEvent>) {
        for event in events {
            match event {
                WorkerEvent::Notice(event) => self.emit(event),
                WorkerEvent::Input(input) => self.inputs.push_back(input),
                WorkerEvent::Broken(error) => {
                    let input = self.broken(error);
                    self.inputs.push_back(input);
                }
            }
        }
    }

    async fn requested(&mut self, request: Request) {
        let input = match request {
            Request::Job(JobRequest::Suspend) => self.suspend().await,
            Request::Job(JobRequest::Continue) => {
                self.continued();
                None
            }
            Request::PassOn(signal) => {
                self.supervisor.pass_on(signal);
                None
            }
            Request::Stop(signal) => Some(self.stop(signal)),
            Request::Notice(taken) => self.notice(taken),
            Request::KeeperLost => Some(GroupInput::KeeperLost),
        };
        self.inputs.extend(input);
    }

    /// Suspends the workers until the job continues or must end.
    /// A notice of preemption also ends the suspension.
    async fn suspend(&mut self) -> Option<GroupInput> {
        let role = self.config.identity.role.clone();
        let since = self.clock.now().mono;
        self.supervisor.suspend();
        let at = self.clock.now().wall;
        self.emit(AgentEvent::Suspended { at });
        warn!("[{role}] stopped; the workers are suspended until SIGCONT");
        if !self.requests.has_keeper() {
            stop_this_process();
        }
        let input = loop {
            match self.requests.next().await {
                Request::Job(JobRequest::Suspend) => {}
                Request::Job(JobRequest::Continue) => break None,
                Request::PassOn(signal) => self.supervisor.pass_on(signal),
                Request::Stop(signal) => break Some(self.stop(signal)),
                Request::Notice(taken) => break self.notice(taken),
                Request::KeeperLost => break Some(GroupInput::KeeperLost),
            }
        };
        self.clock.was_stopped_since(since);
        warn!("[{role}] continued");
        let at = self.clock.now().wall;
        self.emit(AgentEvent::Continued { at });
        // The lease may have ended during the suspension.
        self.fence(fence::Input::Continued);
        if !self.fence.is_closed() {
            self.supervisor.resume();
        }
        input
    }

    fn stop(&mut self, signal: i32) -> GroupInput {
        self.stop_requested = true;
        warn!(target: TORCHELASTIC, "Received {signal} death signal, shutting down workers");
        self.emit(AgentEvent::SignalReceived {
            at: self.clock.now().wall,
            signal,
        });
        GroupInput::Signal(signal)
    }

    /// Stores the first error; the machine only learns that there is one.
    fn broken(&mut self, error: AgentError) -> GroupInput {
        self.error.get_or_insert(error);
        GroupInput::Broken
    }

    fn emit(&mut self, event: AgentEvent) {
        if let AgentEvent::StateChanged { state, .. } = event {
            self.emitted_state = state;
        }
        (self.observer)(&event);
        let at = event.at();
        for moment in restarts::moments(&event).into_iter().flatten() {
            if let Some(restart) = self.restarts.record(at, moment) {
                let restart = Box::new(restart);
                (self.observer)(&AgentEvent::Restarted { at, restart });
            }
        }
    }

    /// Emits the state of the group if it differs from that of the last event.
    fn emit_state(&mut self) {
        let state = self.group.state();
        if state != self.emitted_state {
            self.emit(AgentEvent::StateChanged {
                at: self.clock.now().wall,
                state,
                restart_count: self.group.restart_count(),
            });
        }
    }

    /// Emits an event of a dynamic rendezvous.
    /// Other kinds of rendezvous have no such events.
    fn emit_recorded(&mut self, event: RendezvousEvent) {
        let RendezvousPlan::Dynamic { parameters } = &self.config.rendezvous.plan else {
            return;
        };
        let at = self.clock.now().wall;
        let group = event.group.map(|group| AgentEvent::Group {
            at,
            message: event.message.clone(),
            event: group,
        });
        let event = AgentEvent::RendezvousNotice {
            at,
            state: event.state,
            message: event.message,
            endpoint: parameters.endpoint.clone(),
            rank: event.rank,
            error: event.error,
        };
        self.emit(event);
        if let Some(group) = group {
            self.emit(group);
        }
    }

    fn apply(&mut self, output: GroupOutput) {
        let clock = self.clock;
        match output {
            GroupOutput::Join { restart_count } => self.join(restart_count),
            GroupOutput::PurgeStore => self.rendezvous.purge(),
            GroupOutput::Assign(round) => {
                self.step_began = clock.now().mono;
                self.rendezvous.assign(&round);
            }
            GroupOutput::Assigned {
                workers,
                round,
                restart_count,
            } => self.assigned(&workers, round, restart_count),
            GroupOutput::Start(request) => self.start(request),
            GroupOutput::Go(request) => {
                // Frees the port of the workers' store for a worker that hosts the store itself.
                drop(self.rendezvous.release_port(&request.ranks));
                self.supervisor.go(clock.now().mono, request);
                if self.fence.is_closed() {
                    self.supervisor.suspend();
                }
            }
            GroupOutput::Abort { workers, reason } => self.supervisor.abort(&workers, &reason),
            GroupOutput::Discard { workers } => self.supervisor.discard(&workers),
            GroupOutput::Fail(worker) => self.supervisor.fail(worker),
            GroupOutput::FirstFailure(exit) => self.supervisor.report_failure(&exit),
            GroupOutput::Unhealthy { workers, last } => self.unhealthy(&workers, last),
            GroupOutput::Announce(exit) => {
                let now = clock.now().wall;
                let text = self.failures.announcement(now, &exit, &self.supervisor);
                self.announce(text);
            }
            // The workers are suspended, and a signal that they can handle would let them run
            // again.
            GroupOutput::Signal { workers, .. } if self.fence.is_closed() => {
                let kill = rustix::process::Signal::KILL.as_raw();
                let events = self
                    .supervisor
                    .signal(clock, &workers, kill, Duration::ZERO);
                self.take(events);
            }
            GroupOutput::Signal { workers, signal } => {
                let deadline = self.group.deadline();
                let now = clock.now().mono;
                let shutdown_timeout =
                    deadline.map_or(Duration::ZERO, |deadline| deadline.since(now));
                let events = self
                    .supervisor
                    .signal(clock, &workers, signal, shutdown_timeout);
                self.take(events);
            }
            GroupOutput::Notify { workers, signal } if !self.preemption.workers_have_it() => {
                self.supervisor.notify(&workers, signal);
            }
            GroupOutput::Notify { .. } => {}
            GroupOutput::Kill { workers } => {
                let events = self.supervisor.kill(clock, &workers);
                self.take(events);
            }
            GroupOutput::Abandon { workers } => self.supervisor.abandon(&workers),
            GroupOutput::ClearLeftovers => {
                let events = self.supervisor.kill_leftovers();
                self.take(events);
            }
            GroupOutput::AbandonLeftovers => self.supervisor.abandon_leftovers(),
            GroupOutput::Restarting {
                state,
                remaining,
                most,
            } => {
                let used = self.group.restart_count();
                self.note(|note| note.restarts_used = used);
                // The count includes this restart, as in torchelastic's line.
                info!(
                    target: TORCHELASTIC,
                    "[{}] Worker group {}. {}/{most} attempts left; will restart worker group",
                    self.config.identity.role,
                    state.name(),
                    remaining + 1
                );
                let at = clock.now().wall;
                let failure = self.failures.of_attempt(at, &self.supervisor);
                self.emit(AgentEvent::Restarting {
                    at,
                    state,
                    remaining,
                    most,
                    failure: failure.map(Box::new),
                });
            }
            GroupOutput::Regrouping { reason } => {
                warn!(target: TORCHELASTIC, "[{}] {reason}; will join the next round", self.config.identity.role);
                let at = clock.now().wall;
                self.emit(AgentEvent::Regrouping { at, reason });
            }
            GroupOutput::ExitBarrier { agents } => self.rendezvous.wait_for_others(agents),
            GroupOutput::Finish(ending) => self.ending = Some(ending),
        }
    }

    fn join(&mut self, restart_count: u32) {
        let now = self.clock.now();
        self.step_began = now.mono;
        self.fence(fence::Input::Gone);
        self.emit(AgentEvent::RendezvousBegan {
            at: now.wall,
            restart_count,
            job_restarts: self.group.job_restarts(),
        });
        let lost = self.supervisor.lost();
        self.rendezvous.lost(lost);
        self.supervisor.forget();
        self.failures.forget();
        match self.config.rendezvous.node_check.clone() {
            Some(plan) => self.rendezvous.check(plan),
            None => self.rendezvous.join(),
        }
    }

    fn assigned(&mut self, workers: &[WorkerRanks], round: Round, restart_count: u32) {
        let now = self.clock.now();
        self.supervisor.joined(Peers {
            store: self.rendezvous.round_store(),
            node: round.group_rank,
            nodes: round.group_world_size,
        });
        self.emit(AgentEvent::RanksAssigned {
            at: now.wall,
            took: now.mono.since(self.step_began),
            round: round.number,
            group_rank: round.group_rank,
            group_world_size: round.group_world_size,
            workers: workers
                .iter()
                .map(|ranks| WorkerIdentity::new(ranks, 0))
                .collect(),
            master_addr: round.master.addr,
            master_port: round.master.port,
            store: self.rendezvous.round_store(),
            restart_count,
        });
    }

    fn start(&mut self, request: StartRequest) {
        let ranks = request.ranks;
        let port = self.rendezvous.release_port(&ranks);
        match self.supervisor.start(self.clock, request, port) {
            Ok(events) => {
                if self.fence.is_closed() {
                    // The lease ended after the round was complete.
                    self.supervisor.suspend();
                }
                self.take(events);
            }
            Err(error) => {
                let worker = WorkerIdentity::new(&ranks, 0);
                self.failures.not_started(worker, &error);
                self.take(vec![WorkerEvent::Broken(error)]);
            }
        }
    }

    fn unhealthy(&mut self, workers: &[LocalRank], last: bool) {
        let text = hang_sentence(workers, &self.supervisor);
        error!(target: TORCHELASTIC, "[{}] Worker group UNHEALTHY: {text}", self.config.identity.role);
        if last && !matches!(self.config.rendezvous.plan, RendezvousPlan::Local) {
            let now = self.clock.now().wall;
            let text = self
                .failures
                .hang_announcement(now, workers, &self.supervisor);
            self.announce(text);
        }
    }

    /// Announces to the other nodes that this node has failed permanently.
    fn announce(&mut self, text: String) {
        self.announced = true;
        self.rendezvous.announce(text);
    }

    fn answered(&mut self, answer: Answer) -> Option<GroupInput> {
        Some(match answer {
            Answer::Joined(joined) => self.joined(joined),
            // The agent may have been stopped before this answer.
            Answer::Fit => {
                if self.ending.is_none() {
                    self.rendezvous.join();
                }
                return None;
            }
            Answer::NotNeeded(_) if self.config.rendezvous.is_needed => {
                let run_id = self.config.identity.run_id.as_str().to_owned();
                self.broken(RendezvousError::OtherJob { run_id }.into())
            }
            Answer::NotNeeded(reason) => {
                warn!("[{}] {reason}", self.config.identity.role);
                GroupInput::NotNeeded
            }
            // The answer belongs to a round that the agent has left since.
            Answer::Assigned { join, .. } if !self.rendezvous.is_current(join) => return None,
            Answer::Assigned { result, .. } => match result {
                Ok(assignment) => GroupInput::Assigned(assignment),
                Err(error) => self.broken(error),
            },
            Answer::Changed(Change::Lease { round, ends }) => {
                self.say_fence(ends.is_some());
                let lease = |end| fence::Input::Lease { round, end };
                self.fence(ends.map_or(fence::Input::Off, lease));
                return None;
            }
            Answer::Changed(change) => self.changed(change)?,
            Answer::Preempted { signal, by } => {
                self.preempted_elsewhere(signal, by);
                return None;
            }
            Answer::Recorded(event) => {
                self.emit_recorded(event);
                return None;
            }
            Answer::BarrierPassed { join, .. } if !self.rendezvous.is_current(join) => return None,
            Answer::BarrierPassed { result, .. } => match result {
                Ok(()) => GroupInput::BarrierPassed,
                Err((_, Some(limit))) if self.config.rendezvous.joins_again => {
                    GroupInput::BarrierTimeout(format!(
                        "the workers of other nodes did not exit within {} s \
                         (--exit-barrier-timeout)",
                        limit.as_secs_f64()
                    ))
                }
                Err((error, _)) => {
                    // The workers have succeeded, whatever happened to the other nodes.
                    error!("Error waiting on exit barrier. {error}");
                    GroupInput::BarrierPassed
                }
            },
        })
    }

    fn joined(&mut self, joined: Result<Joined, AgentError>) -> GroupInput {
        let now = self.clock.now();
        let took = now.mono.since(self.step_began);
        self.emit(AgentEvent::Rendezvous {
            at: now.wall,
            took,
            result: match &joined {
                Ok(Joined { round, .. }) => Ok((round.group_rank, round.group_world_size)),
                Err(error) => Err(error.to_string()),
            },
            restart_count: self.group.restart_count(),
        });
        match joined {
            Ok(joined) => {
                let round = self.rendezvous.joined(joined);
                self.round = Some(round.number);
                self.failures.joined(round.group_rank);
                GroupInput::Joined(round)
            }
            Err(error) => self.broken(error),
        }
    }

    /// Handles a change of the other nodes, or of the rendezvous backend.
    fn changed(&mut self, change: Change) -> Option<GroupInput> {
        let now = self.clock.now().wall;
        Some(match change {
            Change::Lease { .. } => return None,
            Change::LossesKnownWithin(within) => GroupInput::LossesKnownWithin(within),
            Change::Membership { round, reason } => {
                if self.round == Some(round) {
                    self.fence(fence::Input::Over);
                }
                let cause = self.failures.membership_changed(now, &reason);
                GroupInput::MembershipChanged {
                    round,
                    cause,
                    reason,
                }
            }
            Change::PeerFailed { node, reason } => {
                let reason = self.failures.peer_failed(now, &reason);
                let message = format!("Node {node} has failed permanently: {reason}");
                self.emit_recorded(RendezvousEvent::new(NodeState::Running, message));
                error!("node {node} has failed permanently: {reason}");
                GroupInput::PeerFailed { node, reason }
            }
            Change::Closed => {
                self.fence(fence::Input::Lifted);
                GroupInput::RunClosed
            }
            Change::Lost(error) => {
                self.fence(fence::Input::Over);
                self.failures.rendezvous_lost(now, &error);
                let _ = self.broken(error.into());
                GroupInput::RendezvousLost
            }
        })
    }
}
