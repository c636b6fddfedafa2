//! Agent for workers that the caller supervises.
//! The agent provides rendezvous, ranks, restarts and the exit barrier.

use std::sync::Arc;

use super::local::{check_role, finish_handlers, result};
use super::polled::PolledSupervisor;
use super::worker_group::View;
use super::{
    ElasticAgent, RunError, RunResult, StopHandle, WorkerGroup, WorkerSpec, WorkerSupervisor,
};
use crate::run::run_supervised;

/// Drives a [`WorkerSupervisor`] through a run, like torchelastic's agent.
///
/// The machine is that of [`LocalElasticAgent`](super::LocalElasticAgent), with one difference.
/// This agent polls its supervisor, at least every [monitor
/// interval](WorkerSpec::monitor_interval); the kernel notifies the other agent. While workers run,
/// this agent notices changes on other nodes, signals and [`StopHandle`]s within that interval, and
/// otherwise immediately.
///
/// Several of these agents can run in one process, on separate threads. Their supervisors must
/// allow that, and their specifications must name no signals, or the same ones: each agent then
/// receives every signal.
#[derive(Debug)]
pub struct SimpleElasticAgent<S> {
    spec: Arc<WorkerSpec>,
    supervisor: S,
    view: View,
    stop: StopHandle,
}

impl<S: WorkerSupervisor> SimpleElasticAgent<S> {
    /// Returns an agent whose workers `supervisor` starts, watches and stops.
    ///
    /// The supervisor, not the agent, starts the workers with the entry point, the logs and the
    /// environment of the specification (in [`WorkerGroup::spec`]).
    pub fn new(spec: WorkerSpec, supervisor: S) -> Self {
        let spec = Arc::new(spec);
        Self {
            view: View::new(Arc::clone(&spec)),
            spec,
            supervisor,
            stop: StopHandle::default(),
        }
    }

    /// Returns the specification of the workers.
    pub fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// Returns the supervisor of the workers.
    pub fn supervisor(&self) -> &S {
        &self.supervisor
    }

    /// Returns a handle that stops the agent from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns a function that takes snapshots of the worker group.
    /// Another thread can use it while [`ElasticAgent::run`] is busy.
    pub fn observer(&self) -> impl Fn() -> WorkerGroup + Send + Sync + Clone + use<S> {
        let view = self.view.clone();
        move || view.snapshot()
    }
}

impl<S: WorkerSupervisor> ElasticAgent for SimpleElasticAgent<S> {
    fn run(&mut self, role: &str) -> Result<RunResult, RunError> {
        check_role(&self.spec, role)?;
        let mut supervisor = PolledSupervisor::new(&self.spec, &mut self.supervisor, &self.view);
        let outcome = run_supervised(
            self.spec.agent_config(),
            &mut supervisor,
            &self.stop,
            &mut |event| self.view.record(&self.spec, event),
        );
        finish_handlers(&self.spec);
        result(
            outcome,
            || Ok(supervisor.returned()),
            |failure| supervisor.process_failure(failure),
        )
    }

    fn worker_group(&self, role: &str) -> Option<WorkerGroup> {
        (role == self.spec.role()).then(|| self.view.snapshot())
    }
}
