//! An agent whose workers are somebody else's business: rendezvous, ranks, restarts and the exit
//! barrier are done here.

use std::sync::Arc;

use super::local::{check_role, finish_handlers, result};
use super::polled::PolledSupervisor;
use super::worker_group::View;
use super::{
    ElasticAgent, RunError, RunResult, StopHandle, WorkerGroup, WorkerSpec, WorkerSupervisor,
};
use crate::run::run_supervised;

/// Drives a [`WorkerSupervisor`] through a run: torchelastic's agent of the same name.
///
/// It is the same machine that decides as in [`LocalElasticAgent`](super::LocalElasticAgent), with
/// one difference: a supervisor is asked, every [monitor interval](WorkerSpec::monitor_interval) at
/// least, where the other agent is told by the kernel. News of other nodes, signals and
/// [`StopHandle`]s are noticed within that interval while workers run, and at once otherwise.
///
/// Several of these may run in one process, on threads of their own, where their supervisors can
/// and their specifications name no signals to handle (or the same: each of them hears of each).
#[derive(Debug)]
pub struct SimpleElasticAgent<S> {
    spec: Arc<WorkerSpec>,
    supervisor: S,
    view: View,
    stop: StopHandle,
}

impl<S: WorkerSupervisor> SimpleElasticAgent<S> {
    /// An agent for workers that `supervisor` starts, watches and stops.
    ///
    /// Of the specification the entry point is looked at by the supervisor only (in
    /// [`WorkerGroup::spec`]), as are its logs and environment.
    pub fn new(spec: WorkerSpec, supervisor: S) -> Self {
        let spec = Arc::new(spec);
        Self {
            view: View::new(Arc::clone(&spec)),
            spec,
            supervisor,
            stop: StopHandle::default(),
        }
    }

    /// What its workers are.
    pub fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// Who looks after its workers.
    pub fn supervisor(&self) -> &S {
        &self.supervisor
    }

    /// What tells it to stop from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// What looks at the worker group from another thread while [`ElasticAgent::run`] is busy.
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
