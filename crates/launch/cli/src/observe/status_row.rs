//! The state of the run, for the status row on a terminal.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use rdzv_agent::launcher::LiveView;
use rdzv_agent::observe::EventSink;
use rdzv_agent::{AgentConfig, AgentEvent};
use rdzv_agent_proto::group::GroupState;
use rdzv_console::live::{Phase, Status};
use rdzv_core::time::Mono;

/// Sink that updates the status row with each event.
#[derive(Debug)]
pub(crate) struct StatusRow {
    view: LiveView,
    status: Status,
    /// `true` if the job has one node.
    is_alone: bool,
    /// Time between the first signal and SIGKILL.
    shutdown_timeout: Duration,
    /// Ranks of the running workers, by process id.
    running: BTreeMap<u32, u32>,
    /// Last signal and its time; an immediate repetition is not another request.
    signalled: Option<(i32, Mono)>,
}

/// View of this process, for reminders from any thread.
static VIEW: OnceLock<LiveView> = OnceLock::new();

/// Shows a reminder of a wait in the status row; `left` is the remaining time.
///
/// Returns `false` if there is no status row or no room in it.
pub(super) fn awaited(text: &str, left: Option<Duration>) -> bool {
    let Some(view) = VIEW.get() else {
        return false;
    };
    view.set_awaited(super::without_name(text), left)
}

/// Time in which a repeated signal is the same request, as for the agent.
const SAME_REQUEST: Duration = Duration::from_millis(200);

impl StatusRow {
    pub(crate) fn new(view: LiveView, plan: &AgentConfig) -> Self {
        // A process has one launch, so the value is set once.
        let _ = VIEW.set(view.clone());
        let status = Status {
            phase: Phase::Starting,
            began: view.now(),
            workers: 0,
            nodes: 0,
            restarts: 0,
            most_restarts: plan.restarts.max_restarts,
            awaited: None,
        };
        view.set_status(Some(status.clone()));
        Self {
            view,
            status,
            is_alone: plan.rendezvous.plan.nodes() == 1,
            shutdown_timeout: plan.stop.shutdown_timeout,
            running: BTreeMap::new(),
            signalled: None,
        }
    }

    fn left(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.running.values().copied().collect();
        ranks.sort_unstable();
        ranks
    }

    fn stopping(&mut self, number: i32) {
        let now = self.view.now();
        let last = self.signalled.replace((number, now));
        if last.is_some_and(|(last, at)| last == number && now.since(at) < SAME_REQUEST) {
            return;
        }
        let (requests, deadline) = match &self.status.phase {
            Phase::Stopping {
                requests, deadline, ..
            } => match requests {
                1 => (2, (*deadline).min(now + self.shutdown_timeout / 4)),
                _ => (requests + 1, now),
            },
            _ => (1, now + self.shutdown_timeout),
        };
        self.status.phase = Phase::Stopping {
            signal: number,
            requests,
            left: self.left(),
            deadline,
            shutdown_timeout: self.shutdown_timeout,
        };
    }
}

impl EventSink for StatusRow {
    fn record(&mut self, event: &AgentEvent) {
        let before = self.status.clone();
        match event {
            AgentEvent::RendezvousBegan { job_restarts, .. } => {
                self.running.clear();
                self.status.restarts = *job_restarts;
                self.status.phase = if self.is_alone {
                    Phase::Starting
                } else {
                    Phase::Waiting
                };
            }
            AgentEvent::RanksAssigned {
                group_world_size,
                workers,
                ..
            } => {
                self.status.nodes = *group_world_size;
                self.status.workers = workers.first().map_or(0, |worker| worker.world_size);
                self.status.phase = Phase::Starting;
            }
            AgentEvent::WorkerStarted { worker, .. } => {
                self.running.insert(worker.pid, worker.rank.0);
            }
            AgentEvent::WorkerExited { worker, .. } => {
                self.running.remove(&worker.pid);
                let ranks = self.left();
                if let Phase::Stopping { left, .. } = &mut self.status.phase {
                    *left = ranks;
                }
            }
            AgentEvent::StateChanged {
                state: GroupState::Healthy,
                ..
            } => self.status.phase = Phase::Running,
            AgentEvent::StateChanged {
                state: GroupState::Succeeded,
                ..
            } => self.status.phase = Phase::Finishing,
            AgentEvent::Restarting { .. } | AgentEvent::Regrouping { .. } => {
                self.status.phase = Phase::Restarting;
            }
            AgentEvent::SignalReceived { signal, .. } => self.stopping(*signal),
            AgentEvent::WorkerFinal { .. } => self.status.phase = Phase::Finishing,
            _ => {}
        }
        if self.status != before {
            self.view.set_status(Some(self.status.clone()));
        }
    }

    fn finish(&mut self) {
        self.view.set_status(None);
    }
}
