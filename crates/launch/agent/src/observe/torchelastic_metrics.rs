//! Metrics of torchelastic's agent, computed from the events of this agent.
//!
//! | name | value |
//! |---|---|
//! | `SimpleElasticAgent._rendezvous.success`, `.failure` | 1 |
//! | `SimpleElasticAgent._assign_worker_ranks.success` | 1 |
//! | `SimpleElasticAgent._initialize_workers.success`, `.failure`, the same with `_restart_workers` | 1 |
//! | `LocalElasticAgent._start_workers.success`, `._stop_workers.success` | 1 |
//! | `SimpleElasticAgent.run.success`, `.failure` | 1 |
//! | each of these with `.duration.ms` | milliseconds |
//! | `workers.⟨role⟩.remaining_restarts` | number that is left |
//! | `workers.⟨role⟩.⟨state, lower case⟩` | 1 |
//! | `workers.⟨role⟩.run_total`, `.run_{success,failed}_{with,no}_retries` | 0 or 1, at the end |
//! | `workers.⟨role⟩.flakiness` | percent, at the end |
//!
//! No metric has the state `init` or `stopped`. Each failed attempt has one metric with the state
//! `failed` or `unhealthy`.
//!
//! Torchelastic publishes the state with every poll of its workers. This module publishes the state
//! when it changes, and has no `_monitor_workers`.
//!
//! As in torchelastic, a restart lasts from the moment when the agent begins to stop the workers.
//! If a run ends with an error of the agent, neither program publishes a failed state or
//! `_stop_workers` at the end.

use std::time::Duration;

use rdzv_agent_proto::group::GroupState;
use rdzv_core::time::Wall;

use super::metrics_registry::{DEFAULT_GROUP, MetricsRegistry};
use super::sink::{EventSink, RunFacts};
use crate::AgentEvent;

const STOP_WORKERS: &str = "LocalElasticAgent._stop_workers";

/// Sink that publishes torchelastic's metrics.
#[derive(Debug)]
pub struct AgentMetrics {
    registry: MetricsRegistry,
    role: String,
    local_world_size: u32,
    max_restarts: u32,
    restart_count: u32,
    began: Wall,
    assigned: Wall,
    started: u32,
    /// Time at which the agent began to stop the group, if it did.
    stopping: Option<Wall>,
    /// Duration of the group's stop before the end of the run, if it was stopped.
    stopped: Option<Duration>,
    /// Time at which the restart that led to this attempt began.
    /// `None` if no stop preceded this attempt.
    restarted: Option<Wall>,
    unhealthy: bool,
}

impl AgentMetrics {
    /// Creates a sink that publishes to this registry.
    pub fn new(facts: &RunFacts, registry: MetricsRegistry) -> Self {
        Self {
            registry,
            role: facts.role.clone(),
            local_world_size: facts.local_world_size,
            max_restarts: facts.max_restarts,
            restart_count: 0,
            began: Wall::default(),
            assigned: Wall::default(),
            started: 0,
            stopping: None,
            stopped: None,
            restarted: None,
            unhealthy: false,
        }
    }

    fn publish(&mut self, at: Wall, name: &str, value: i64) {
        self.registry.publish(at, DEFAULT_GROUP, name, value);
    }

    /// Publishes one call of a function of torchelastic.
    fn call(&mut self, at: Wall, function: &str, succeeded: bool, took: Duration) {
        let result = if succeeded { "success" } else { "failure" };
        self.publish(at, &format!("{function}.{result}"), 1);
        let millis = i64::try_from(took.as_millis()).unwrap_or(i64::MAX);
        self.publish(at, &format!("{function}.duration.ms"), millis);
    }

    fn of_workers(&mut self, at: Wall, name: &str, value: i64) {
        let name = format!("workers.{}.{name}", self.role);
        self.publish(at, &name, value);
    }

    fn remaining(&self) -> u32 {
        self.max_restarts.saturating_sub(self.restart_count)
    }

    /// Publishes the start of an attempt: its workers run, or it has failed before.
    fn initialized(&mut self, at: Wall, succeeded: bool) {
        let function = "SimpleElasticAgent._initialize_workers";
        self.call(at, function, succeeded, at.since(self.began));
        if let Some(restarted) = self.restarted.take() {
            let function = "SimpleElasticAgent._restart_workers";
            self.call(at, function, succeeded, at.since(restarted));
        }
    }

    fn state(&mut self, at: Wall, state: GroupState) {
        if matches!(state, GroupState::Stopped | GroupState::Unhealthy) {
            self.stopping.get_or_insert(at);
        } else if let Some(stopping) = self.stopping.take() {
            let took = at.since(stopping);
            if state == GroupState::Failed {
                self.stopped = Some(took);
            } else {
                self.call(at, STOP_WORKERS, true, took);
                self.restarted = Some(stopping);
            }
        }
        // Torchelastic publishes the result of a poll. Other events publish the state `failed`.
        let found = matches!(
            state,
            GroupState::Healthy
                | GroupState::Unhealthy
                | GroupState::Succeeded
                | GroupState::Unknown
        );
        if found {
            self.monitored(at, state, self.remaining());
        }
        self.unhealthy |= state == GroupState::Unhealthy;
    }

    /// Publishes a state in the way of torchelastic's poll.
    fn monitored(&mut self, at: Wall, state: GroupState, remaining: u32) {
        self.of_workers(at, "remaining_restarts", i64::from(remaining));
        self.of_workers(at, &state.name().to_lowercase(), 1);
    }

    fn end(&mut self, at: Wall, returned: bool, succeeded: bool, took: Duration) {
        if !returned {
            self.call(at, "SimpleElasticAgent.run", false, took);
            return;
        }
        if !succeeded && !self.unhealthy {
            self.monitored(at, GroupState::Failed, self.remaining());
        }
        if let Some(took) = self.stopped {
            self.call(at, STOP_WORKERS, true, took);
        }
        self.call(at, "SimpleElasticAgent.run", true, took);
        self.of_workers(at, "flakiness", self.flakiness(succeeded));
        self.of_workers(at, "run_total", 1);
        let restarted = self.restart_count > 0;
        for (name, holds) in [
            ("run_success_with_retries", succeeded && restarted),
            ("run_success_no_retries", succeeded && !restarted),
            ("run_failed_with_retries", !succeeded && restarted),
            ("run_failed_no_retries", !succeeded && !restarted),
        ] {
            self.of_workers(at, name, holds.into());
        }
    }

    /// Returns 100 for a failed run, otherwise the failed attempts of a success.
    /// They are a percentage of the attempts that the restart budget permits.
    fn flakiness(&self, succeeded: bool) -> i64 {
        if !succeeded {
            return 100;
        }
        let left = f64::from(self.remaining()) + 1.0;
        let most = f64::from(self.max_restarts) + 1.0;
        // Both are small and positive; torchelastic truncates too.
        (100.0 - 100.0 * left / most) as i64
    }
}

impl EventSink for AgentMetrics {
    fn record(&mut self, event: &AgentEvent) {
        let at = event.at();
        match event {
            AgentEvent::RendezvousBegan { restart_count, .. } => {
                self.restart_count = *restart_count;
                (self.began, self.started, self.unhealthy) = (at, 0, false);
            }
            AgentEvent::Rendezvous { took, result, .. } => {
                self.assigned = at;
                let function = "SimpleElasticAgent._rendezvous";
                self.call(at, function, result.is_ok(), *took);
                if result.is_err() {
                    self.initialized(at, false);
                }
            }
            AgentEvent::RanksAssigned { took, .. } => {
                self.assigned = at;
                let function = "SimpleElasticAgent._assign_worker_ranks";
                self.call(at, function, true, *took);
            }
            AgentEvent::WorkerStarted { .. } => {
                self.started += 1;
                if self.started == self.local_world_size {
                    let function = "LocalElasticAgent._start_workers";
                    self.call(at, function, true, at.since(self.assigned));
                    self.initialized(at, true);
                }
            }
            AgentEvent::Restarting {
                state: GroupState::Failed,
                remaining,
                ..
            } => self.monitored(at, GroupState::Failed, remaining + 1),
            AgentEvent::StateChanged {
                state,
                restart_count,
                ..
            } => {
                self.restart_count = *restart_count;
                self.state(at, *state);
            }
            AgentEvent::AgentFinal {
                state,
                took,
                workers_succeeded,
                ..
            } => self.end(at, *state == "SUCCEEDED", *workers_succeeded, *took),
            _ => {}
        }
    }
}
