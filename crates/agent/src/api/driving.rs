//! One run of a supervisor's workers: the machine decides, the supervisor and the meeting carry out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::{Cause, Ending, Exit, GroupInput, WorkerExit, WorkerGroup};
use rdzv_core::machine::Machine;
use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Mono;
use serde_json::Value;
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::yield_now;
use tokio::time::sleep_until;

use super::local::{finish_telling, tell};
use super::worker_group::View;
use super::{
    ProcessFailure, RunError, RunResult, StartRequest, StopHandle, SupervisorError, WorkerId,
    WorkerSpec, WorkerState, WorkerSupervisor,
};
use crate::clock::Clock;
use crate::effects::identity;
use crate::meeting::{Answer, Meeting};
use crate::signals::Signals;
use crate::{AgentError, AgentEvent, WorkerFiles, WorkerIdentity};

/// One run.
pub(super) struct Driving<'a> {
    pub(super) spec: &'a Arc<WorkerSpec>,
    pub(super) supervisor: &'a mut dyn WorkerSupervisor,
    pub(super) view: &'a View,
    pub(super) runtime: LocalRuntime,
    pub(super) clock: Clock,
    pub(super) machine: WorkerGroup,
    pub(super) meeting: Meeting,
    /// What the machine is told next, before anything from outside.
    pub(super) answers: VecDeque<GroupInput>,
    /// The workers of this attempt that the machine wants started; empty once they are.
    wanted: Vec<StartRequest>,
    /// The workers that run, and where.
    running: BTreeMap<LocalRank, (WorkerIdentity, WorkerId)>,
    /// All workers of the last attempt.
    pub(super) attempt: Vec<WorkerIdentity>,
    /// How workers of this attempt failed, in that order.
    pub(super) failures: Vec<ProcessFailure>,
    pub(super) returned: BTreeMap<Rank, Value>,
    /// The state that was told last.
    told_state: WorkerState,
    /// When the current rendezvous or exchange began.
    pub(super) step_began: Mono,
    /// The error that the machine knows as "broken".
    pub(super) error: Option<RunError>,
    pub(super) ending: Option<Ending>,
    pub(super) others_told: bool,
    signals: Signals,
    arrivals: UnboundedReceiver<Answer>,
}

impl<'a> Driving<'a> {
    pub(super) fn new(
        spec: &'a Arc<WorkerSpec>,
        supervisor: &'a mut dyn WorkerSupervisor,
        view: &'a View,
        stop: &StopHandle,
    ) -> Result<Self, RunError> {
        let system = |what| move |source| AgentError::System { what, source };
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build_local(LocalOptions::default())
            .map_err(system("start the agent's event loop"))?;
        let signals = runtime
            .block_on(async { Signals::new(spec.signals.iter().copied()) })
            .map_err(system("handle signals"))?;
        let plan = spec.plan_without_command();
        let (sender, arrivals) = unbounded_channel();
        stop.attach(&sender);
        Ok(Self {
            spec,
            supervisor,
            view,
            runtime,
            clock: Clock::new(),
            machine: WorkerGroup::new(crate::agent::spec(&plan)),
            meeting: Meeting::new(&plan, sender),
            answers: VecDeque::from([GroupInput::Begin]),
            wanted: Vec::new(),
            running: BTreeMap::new(),
            attempt: Vec::new(),
            failures: Vec::new(),
            returned: BTreeMap::new(),
            told_state: WorkerState::Init,
            step_began: Mono::ZERO,
            error: None,
            ending: None,
            others_told: false,
            signals,
            arrivals,
        })
    }

    pub(super) fn run(mut self) -> Result<RunResult, RunError> {
        let ending = loop {
            let input = match self.answers.pop_front() {
                Some(answer) => Some(answer),
                None if !self.wanted.is_empty() => self.start(),
                None => self.wait(),
            };
            let Some(input) = input else { continue };
            self.machine.handle(self.clock.now(), input);
            while let Some(output) = self.machine.poll_output() {
                self.carry_out(output);
            }
            self.tell_state();
            if let Some(ending) = self.ending.take() {
                break ending;
            }
        };
        let result = self.end(ending);
        finish_telling(self.spec);
        result
    }

    /// Starts all workers that the machine has asked for, which it believes to be running by now.
    fn start(&mut self) -> Option<GroupInput> {
        let wanted = std::mem::take(&mut self.wanted);
        let released: Vec<_> = wanted
            .iter()
            .filter_map(|request| self.meeting.release_port(&request.place))
            .collect();
        let started = self
            .supervisor
            .start_workers(&self.view.snapshot(), &wanted);
        drop(released);
        let ids = match started {
            Ok(ids) => ids,
            Err(error) => {
                self.note_running(&wanted, &BTreeMap::new());
                return Some(self.broken(error.into()));
            }
        };
        self.note_running(&wanted, &ids);
        for worker in &self.attempt {
            self.emit(&AgentEvent::WorkerStarted {
                at: self.clock.now().wall,
                worker: worker.clone(),
                files: WorkerFiles::default(),
                restart_count: self.machine.restart_count(),
            });
        }
        self.view.change(|group| group.set_ids(&ids));
        let missing = wanted
            .iter()
            .find(|request| !ids.contains_key(&request.place.local_rank))?;
        let local_rank = missing.place.local_rank;
        let text = format!("the supervisor did not say where the worker {local_rank} was started");
        Some(self.broken(SupervisorError(text).into()))
    }

    fn note_running(&mut self, wanted: &[StartRequest], ids: &BTreeMap<LocalRank, WorkerId>) {
        self.running = wanted
            .iter()
            .map(|request| {
                let local_rank = request.place.local_rank;
                let id = ids.get(&local_rank).cloned();
                let id = id.unwrap_or_else(|| WorkerId::Remote(String::new()));
                let pid = match id {
                    WorkerId::Process(pid) => pid,
                    WorkerId::Remote(_) => 0,
                };
                (local_rank, (identity(&request.place, pid), id))
            })
            .collect();
        let running = self.running.values();
        self.attempt = running.map(|(worker, _)| worker.clone()).collect();
    }

    /// Waits for the next thing that the machine has to know; `None` if there was none.
    fn wait(&mut self) -> Option<GroupInput> {
        if self.running.is_empty() {
            return self.news(true);
        }
        if let Some(news) = self.news(false) {
            return Some(news);
        }
        let now = self.clock.now().mono;
        let within = match self.machine.deadline() {
            Some(deadline) if deadline <= now => return Some(GroupInput::TimePassed),
            Some(deadline) => deadline.since(now).min(self.spec.monitor_interval()),
            None => self.spec.monitor_interval(),
        };
        let group = self.view.snapshot();
        match self.supervisor.monitor_workers(&group, within) {
            Ok(found) => self.found(found),
            Err(error) => Some(self.broken(error.into())),
        }
    }

    /// Signals, wishes and news of other nodes: those that are there, or the next one.
    fn news(&mut self, wait: bool) -> Option<GroupInput> {
        let deadline = self.machine.deadline().map(|at| self.clock.instant(at));
        let (signals, arrivals) = (&mut self.signals, &mut self.arrivals);
        let otherwise = async {
            match (wait, deadline) {
                // The runtime looks at its sources once before it comes back here.
                (false, _) => yield_now().await,
                (true, Some(deadline)) => sleep_until(deadline).await,
                (true, None) => std::future::pending().await,
            }
        };
        let answer = self.runtime.block_on(async {
            tokio::select! {
                biased;
                signal = signals.next() => Some(Answer::Told(signal)),
                Some(answer) = arrivals.recv() => Some(answer),
                () = otherwise => None,
            }
        });
        match answer {
            Some(answer) => self.arrived(answer),
            None if wait => Some(GroupInput::TimePassed),
            None => None,
        }
    }

    /// What the supervisor found.
    fn found(&mut self, found: RunResult) -> Option<GroupInput> {
        match found.state {
            WorkerState::Healthy => None,
            WorkerState::Succeeded => {
                self.returned = found.return_values;
                let exits = std::mem::take(&mut self.running)
                    .into_iter()
                    .map(|(_, (worker, _))| self.ended(&worker, Exit::Code(0), false))
                    .collect();
                Some(GroupInput::Exited(exits))
            }
            WorkerState::Failed => {
                let failures = in_order(found);
                let exits: Vec<WorkerExit> = failures
                    .into_iter()
                    .filter_map(|failure| self.failed(failure))
                    .collect();
                if exits.is_empty() {
                    return Some(self.unrecoverable(WorkerState::Unknown));
                }
                Some(GroupInput::Exited(exits))
            }
            WorkerState::Unhealthy => {
                let mut workers: Vec<LocalRank> = found
                    .failures
                    .values()
                    .map(|failure| failure.local_rank)
                    .collect();
                if workers.is_empty() {
                    workers = self.running.keys().copied().collect();
                }
                self.failures.extend(in_order(found));
                Some(GroupInput::Unhealthy {
                    workers,
                    restartable: true,
                })
            }
            state @ (WorkerState::Unknown | WorkerState::Init | WorkerState::Stopped) => {
                Some(self.unrecoverable(state))
            }
        }
    }

    fn unrecoverable(&mut self, state: WorkerState) -> GroupInput {
        self.tell(state);
        let role = self.spec.role().to_owned();
        let state = state.name();
        self.broken(RunError::Unrecoverable { role, state })
    }

    /// A worker that the supervisor says has failed; `None` if it does not run.
    fn failed(&mut self, mut failure: ProcessFailure) -> Option<WorkerExit> {
        let (worker, id) = self.running.remove(&failure.local_rank)?;
        if failure.exit.is_success() {
            failure.exit = Exit::Code(1);
        }
        let exit = WorkerExit {
            at: failure.time,
            ..self.ended(&worker, failure.exit, false)
        };
        failure.rank = worker.rank;
        failure.id = Some(id);
        self.failures.push(failure);
        Some(exit)
    }

    /// A worker that does not run any more.
    fn ended(&self, worker: &WorkerIdentity, exit: Exit, stopped_by_agent: bool) -> WorkerExit {
        let at = self.clock.now().wall;
        self.emit(&AgentEvent::WorkerExited {
            at,
            worker: worker.clone(),
            exit,
            stopped_by_agent,
        });
        WorkerExit {
            local_rank: worker.local_rank,
            pid: worker.pid,
            exit,
            at,
            stopped_by_agent,
        }
    }

    /// Has the workers stopped. When the supervisor returns, none is left.
    pub(super) fn stop(&mut self, signal: i32, grace: Duration) {
        if self.running.is_empty() {
            return;
        }
        self.wanted.clear();
        self.tell_state();
        let group = self.view.snapshot();
        if let Err(error) = self.supervisor.stop_workers(&group, signal, grace) {
            let broken = self.broken(error.into());
            self.answers.push_back(broken);
        }
        let stopped = std::mem::take(&mut self.running);
        let exits = stopped
            .into_iter()
            .map(|(local_rank, (worker, id))| {
                let exit = self.ended(&worker, Exit::Signal(signal), true);
                // One that was found unhealthy has its record already.
                if !self
                    .failures
                    .iter()
                    .any(|failure| failure.local_rank == local_rank)
                {
                    self.failures.push(ProcessFailure {
                        id: Some(id),
                        stopped_by_agent: true,
                        cause: Cause::StoppedByAgent { number: -signal },
                        ..ProcessFailure::new(worker.rank, local_rank, exit.exit, exit.at)
                    });
                }
                exit
            })
            .collect();
        self.answers.push_back(GroupInput::Exited(exits));
    }

    /// The machine wants this worker started; all of them are started together once it has said so
    /// of the last one.
    pub(super) fn want(&mut self, request: StartRequest) {
        if self.wanted.is_empty() {
            self.failures.clear();
        }
        self.answers
            .push_back(GroupInput::Started(request.place.local_rank));
        self.wanted.push(request);
    }

    /// Says so if the group is in another state than when this was last called.
    fn tell_state(&mut self) {
        self.tell(self.machine.state());
    }

    fn tell(&mut self, state: WorkerState) {
        if state != self.told_state {
            self.told_state = state;
            self.emit(&AgentEvent::StateChanged {
                at: self.clock.now().wall,
                state,
                restart_count: self.machine.restart_count(),
            });
        }
    }

    pub(super) fn emit(&self, event: &AgentEvent) {
        self.view.change(|group| group.apply(event));
        tell(self.spec, event);
    }

    /// Keeps the first error; the machine only knows that there is one.
    pub(super) fn broken(&mut self, error: RunError) -> GroupInput {
        self.error.get_or_insert(error);
        GroupInput::Broken
    }
}

/// The failures of a result, the first one first and the rest by time.
fn in_order(found: RunResult) -> Vec<ProcessFailure> {
    let first = found.first;
    let mut failures: Vec<ProcessFailure> = found.failures.into_values().collect();
    failures.sort_by_key(|failure| (Some(failure.rank) != first, failure.time));
    failures
}
