//! Supervisor that polls a [`WorkerSupervisor`] for the agent's loop.
//! It starts all workers of an attempt together.

use std::collections::BTreeMap;
use std::future::pending;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use rdzv_agent_proto::group::{Cause, Evidence, Exit, Failure, GroupInput, WorkerExit};
use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;
use serde_json::Value;
use tokio::task::yield_now;

use super::worker_group::View;
use super::{
    ProcessFailure, RunResult, StartRequest, SupervisorError, WorkerLocation, WorkerSpec,
    WorkerState, WorkerSupervisor,
};
use crate::clock::Clock;
use crate::supervisor::{Supervisor, Watch, WorkerEvent};
use crate::worker::{WorkerFiles, WorkerIdentity};
use crate::{AgentError, AgentEvent};
use rdzv_agent_proto::group::ErrorFile;

/// One worker of the current attempt.
#[derive(Debug)]
struct Polled {
    identity: WorkerIdentity,
    id: WorkerLocation,
    started: Wall,
    running: bool,
    failure: Option<ProcessFailure>,
}

/// Supervisor that the agent polls.
pub(super) struct PolledSupervisor<'a> {
    spec: &'a WorkerSpec,
    supervisor: &'a mut dyn WorkerSupervisor,
    view: &'a View,
    /// Requests for the workers that will be started together.
    requests: Vec<StartRequest>,
    /// Listener that reserves the port for one of these workers.
    reserved_port: Option<Arc<TcpListener>>,
    /// Signal and shutdown timeout for stopping the workers.
    stop: Option<(i32, Duration)>,
    workers: BTreeMap<LocalRank, Polled>,
    returned: BTreeMap<Rank, Value>,
}

impl<'a> PolledSupervisor<'a> {
    pub(super) fn new(
        spec: &'a WorkerSpec,
        supervisor: &'a mut dyn WorkerSupervisor,
        view: &'a View,
    ) -> Self {
        Self {
            spec,
            supervisor,
            view,
            requests: Vec::new(),
            reserved_port: None,
            stop: None,
            workers: BTreeMap::new(),
            returned: BTreeMap::new(),
        }
    }

    pub(super) fn returned(&self) -> BTreeMap<Rank, Value> {
        self.returned.clone()
    }

    /// Returns a failure with the id of its worker, which need not be a process.
    pub(super) fn process_failure(&self, failure: &Failure) -> ProcessFailure {
        let local_rank = failure.evidence.local_rank.unwrap_or_default();
        let worker = self.workers.get(&local_rank);
        ProcessFailure {
            id: worker.map(|worker| worker.id.clone()),
            ..ProcessFailure::from(failure)
        }
    }

    /// Starts all workers of the attempt.
    /// The machine already counts them as running.
    fn start_all(&mut self, clock: Clock, requests: &[StartRequest]) -> Vec<WorkerEvent> {
        let started = self
            .supervisor
            .start_workers(&self.view.snapshot(), requests);
        self.reserved_port = None;
        let (ids, error) = match started {
            Ok(ids) => (ids, None),
            Err(error) => (BTreeMap::new(), Some(error)),
        };
        let at = clock.now().wall;
        for request in requests {
            let local_rank = request.ranks.local_rank;
            let id = ids.get(&local_rank).cloned();
            let id = id.unwrap_or_else(|| WorkerLocation::Remote(String::new()));
            let worker = Polled {
                identity: WorkerIdentity::new(&request.ranks, id.pid().unwrap_or(0)),
                id,
                started: at,
                running: true,
                failure: None,
            };
            self.workers.insert(local_rank, worker);
        }
        if let Some(error) = error {
            return vec![WorkerEvent::Broken(error.into())];
        }
        self.view.change(|group| group.set_ids(&ids));
        let started = self.workers.values().zip(requests);
        let mut events: Vec<WorkerEvent> = started
            .map(|(worker, request)| {
                WorkerEvent::Notice(AgentEvent::WorkerStarted {
                    at,
                    worker: worker.identity.clone(),
                    files: WorkerFiles::default(),
                    restart_count: request.restart_count,
                })
            })
            .collect();
        let mut missing = self.workers.keys().filter(|rank| !ids.contains_key(rank));
        if let Some(local_rank) = missing.next() {
            let text = format!(
                "the supervisor did not report where it started the worker with local rank \
                 {local_rank}"
            );
            events.push(WorkerEvent::Broken(SupervisorError(text).into()));
        }
        events
    }

    /// Makes the supervisor stop all workers; no worker is left afterwards.
    fn stop_all(
        &mut self,
        clock: Clock,
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Vec<WorkerEvent> {
        let group = self.view.snapshot();
        let stopped = self
            .supervisor
            .stop_workers(&group, signal, shutdown_timeout);
        let mut events = Vec::new();
        if let Err(error) = stopped {
            events.push(WorkerEvent::Broken(error.into()));
        }
        let now = clock.now().wall;
        let running = self.workers.values_mut().filter(|worker| worker.running);
        let ended = running
            .map(|worker| worker.end(now, Exit::Signal(signal), worker.failure.is_none()))
            .collect();
        events.extend(exited(ended));
        events
    }

    fn found(&mut self, clock: Clock, found: RunResult) -> Vec<WorkerEvent> {
        let now = clock.now().wall;
        match found.state {
            WorkerState::Healthy => Vec::new(),
            WorkerState::Succeeded => {
                self.returned = found.return_values;
                let running = self.workers.values_mut().filter(|worker| worker.running);
                exited(
                    running
                        .map(|worker| worker.end(now, Exit::Code(0), false))
                        .collect(),
                )
            }
            WorkerState::Failed => {
                let mut ended = Vec::new();
                for mut failure in in_order(found) {
                    let Some(worker) = self
                        .workers
                        .get_mut(&failure.local_rank)
                        .filter(|worker| worker.running)
                    else {
                        continue;
                    };
                    if failure.exit.is_success() {
                        failure.exit = Exit::Code(1);
                    }
                    let (at, exit) = (failure.time, failure.exit);
                    worker.failure = Some(failure);
                    let (event, ended_worker) = worker.end(now, exit, false);
                    ended.push((event, WorkerExit { at, ..ended_worker }));
                }
                if ended.is_empty() {
                    return self.unrecoverable(now, WorkerState::Unknown);
                }
                exited(ended)
            }
            WorkerState::Unhealthy => {
                let mut unhealthy = Vec::new();
                for failure in in_order(found) {
                    let local_rank = failure.local_rank;
                    unhealthy.push(local_rank);
                    if let Some(worker) = self.workers.get_mut(&local_rank) {
                        worker.failure = Some(failure);
                    }
                }
                if unhealthy.is_empty() {
                    let running = self.workers.iter().filter(|(_, worker)| worker.running);
                    unhealthy = running.map(|(local_rank, _)| *local_rank).collect();
                }
                vec![
                    GroupInput::Unhealthy {
                        workers: unhealthy,
                        is_final: None,
                    }
                    .into(),
                ]
            }
            state @ (WorkerState::Unknown | WorkerState::Init | WorkerState::Stopped) => {
                self.unrecoverable(now, state)
            }
        }
    }

    fn unrecoverable(&self, at: Wall, state: WorkerState) -> Vec<WorkerEvent> {
        let restart_count = self.view.change(|group| group.restart_count);
        let error = AgentError::Unrecoverable {
            role: self.spec.role().to_owned(),
            state: state.name(),
        };
        vec![
            WorkerEvent::Notice(AgentEvent::StateChanged {
                at,
                state,
                restart_count,
            }),
            WorkerEvent::Broken(error),
        ]
    }
}

impl Polled {
    fn end(&mut self, at: Wall, exit: Exit, stopped_by_agent: bool) -> (AgentEvent, WorkerExit) {
        self.running = false;
        let worker = self.identity.clone();
        let ended = WorkerExit {
            local_rank: worker.local_rank,
            pid: worker.pid,
            exit,
            at,
            stopped_by_agent,
        };
        let event = AgentEvent::WorkerExited {
            at,
            worker,
            exit,
            stopped_by_agent,
        };
        (event, ended)
    }
}

/// Returns the events of workers that have exited, in this order.
fn exited(ended: Vec<(AgentEvent, WorkerExit)>) -> Vec<WorkerEvent> {
    let (events, exits): (Vec<AgentEvent>, Vec<WorkerExit>) = ended.into_iter().unzip();
    let events = events.into_iter().map(WorkerEvent::from);
    events.chain([GroupInput::Exited(exits).into()]).collect()
}

/// Returns the failures of a result: the first one, then the rest by time.
fn in_order(found: RunResult) -> Vec<ProcessFailure> {
    let first = found.first;
    let mut failures: Vec<ProcessFailure> = found.failures.into_values().collect();
    failures.sort_by_key(|failure| (Some(failure.rank) != first, failure.time));
    failures
}

impl Supervisor for &mut PolledSupervisor<'_> {
    fn forget(&mut self) {
        self.workers.clear();
    }

    fn start(
        &mut self,
        _clock: Clock,
        request: StartRequest,
        reserved_port: Option<Arc<TcpListener>>,
    ) -> Result<Vec<WorkerEvent>, AgentError> {
        let local_rank = request.ranks.local_rank;
        self.requests.push(request);
        self.reserved_port = self.reserved_port.take().or(reserved_port);
        Ok(vec![GroupInput::Started(local_rank).into()])
    }

    async fn next(&mut self, clock: Clock, watch: Watch) -> Vec<WorkerEvent> {
        let requests = std::mem::take(&mut self.requests);
        if !requests.is_empty() {
            return self.start_all(clock, &requests);
        }
        if let Some((signal, shutdown_timeout)) = self.stop.take() {
            return self.stop_all(clock, signal, shutdown_timeout);
        }
        if !self.workers.values().any(|worker| worker.running) {
            return pending().await;
        }
        let interval = self.spec.monitor_interval();
        let deadline = watch.within.map(|within| clock.now().mono + within);
        loop {
            // Other tasks run first, because the supervisor may block up to its limit.
            yield_now().await;
            let left = deadline.map(|deadline| deadline.since(clock.now().mono));
            let within = left.map_or(interval, |left| left.min(interval));
            let group = self.view.snapshot();
            let events = match self.supervisor.monitor_workers(&group, within) {
                Ok(found) => self.found(clock, found),
                Err(error) => vec![WorkerEvent::Broken(error.into())],
            };
            if !events.is_empty() {
                return events;
            }
        }
    }

    /// Records that the next call of [`Supervisor::next`] stops the workers.
    /// The stop may take a while, and observers must learn of the decision first.
    fn signal(
        &mut self,
        _clock: Clock,
        _workers: &[LocalRank],
        signal: i32,
        shutdown_timeout: Duration,
    ) -> Vec<WorkerEvent> {
        if self.workers.values().any(|worker| worker.running) {
            self.stop = Some((signal, shutdown_timeout));
        }
        Vec::new()
    }

    fn workers(&self) -> Vec<WorkerIdentity> {
        let workers = self.workers.values();
        workers.map(|worker| worker.identity.clone()).collect()
    }

    fn kill_cause(&self, worker: LocalRank) -> Option<&Cause> {
        let failure = self.workers.get(&worker)?.failure.as_ref()?;
        Some(&failure.cause)
    }

    fn evidence(&self, worker: LocalRank) -> Option<Evidence> {
        let worker = self.workers.get(&worker)?;
        let failure = worker.failure.as_ref();
        let file = failure.and_then(|failure| {
            Some(ErrorFile {
                path: failure.error_file.clone()?,
                content: failure.error.clone().ok_or_else(String::new),
            })
        });
        Some(Evidence {
            rank: Some(worker.identity.rank),
            started: Some(worker.started),
            kill_cause: failure.map(|failure| failure.cause.clone()),
            error_file: file,
            ..Evidence::default()
        })
    }

    fn sentence(&self, failure: &Failure) -> String {
        format!("worker {}", self.process_failure(failure))
    }

    fn shutdown(&mut self, signal: i32) {
        self.supervisor
            .shutdown(signal, self.spec.config.stop.shutdown_timeout);
    }
}
