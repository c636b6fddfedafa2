//! Agent whose workers are processes of this machine.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use rdzv_core::rank::Rank;
use serde_json::Value;

use super::function::Call;
use super::worker_group::View;
use super::{
    ElasticAgent, ProcessFailure, RunError, RunResult, StopHandle, WorkerEntrypoint, WorkerGroup,
    WorkerLocation, WorkerSpec,
};
use crate::Outcome;
use crate::run::run_processes;
use rdzv_agent_proto::group::Failure;

/// Lock of the one agent that runs in this process.
static RUNNING: Mutex<()> = Mutex::new(());

/// Agent that runs the workers of one node as processes, as `rdzv run` does.
///
/// [`ElasticAgent::run`] blocks its thread until all workers and their processes have exited,
/// except those that the kernel holds. During the run, this process handles the signals of the
/// specification, adopts orphans of the workers, and does not let the workers inherit its open
/// descriptors. Only one such agent can run in a process at a time.
///
/// If this process is killed, its workers die with it, but processes that the workers started may
/// survive. To kill those too, run the program under a keeper ([`keep`](crate::launcher::keep)).
#[derive(Debug)]
pub struct LocalElasticAgent {
    spec: Arc<WorkerSpec>,
    view: View,
    stop: StopHandle,
}

impl LocalElasticAgent {
    /// Creates an agent for the workers of one node.
    pub fn new(spec: WorkerSpec) -> Self {
        let spec = Arc::new(spec);
        Self {
            view: View::new(Arc::clone(&spec)),
            spec,
            stop: StopHandle::default(),
        }
    }

    /// Returns the specification of the workers.
    pub fn spec(&self) -> &WorkerSpec {
        &self.spec
    }

    /// Returns a handle that stops the agent from another thread.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Returns a function that takes snapshots of the worker group.
    /// Another thread can use it while [`ElasticAgent::run`] is busy.
    pub fn observer(&self) -> impl Fn() -> WorkerGroup + Send + Sync + Clone + 'static {
        let view = self.view.clone();
        move || view.snapshot()
    }

    fn run_group(&self) -> Result<RunResult, RunError> {
        let mut config = self.spec.process_config()?;
        let call = match self.spec.entrypoint() {
            WorkerEntrypoint::Function { name, input, .. } => Some(Call::prepare(name, input)?),
            _ => None,
        };
        if let Some(call) = &call {
            config.environment.extend([call.variable()]);
        }
        let outcome = run_processes(config, None, &self.stop, &mut |event| {
            self.view.record(&self.spec, event);
        });
        finish_handlers(&self.spec);
        result(
            outcome,
            || self.returned(call.as_ref()),
            |failure| ProcessFailure::from(failure),
        )
    }

    fn returned(&self, call: Option<&Call>) -> Result<BTreeMap<Rank, Value>, RunError> {
        let mut values = BTreeMap::new();
        let Some(call) = call else {
            return Ok(values);
        };
        for worker in self.view.snapshot().workers {
            if let (Some(rank), Some(WorkerLocation::Process(pid))) =
                (worker.global_rank, worker.id)
                && let Some(value) = call.returned(pid)?
            {
                values.insert(rank, value);
            }
        }
        Ok(values)
    }
}

impl ElasticAgent for LocalElasticAgent {
    fn run(&mut self, role: &str) -> Result<RunResult, RunError> {
        check_role(&self.spec, role)?;
        let _alone = match RUNNING.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(RunError::Busy),
            alone => alone,
        };
        self.run_group()
    }

    fn worker_group(&self, role: &str) -> Option<WorkerGroup> {
        (role == self.spec.role()).then(|| self.view.snapshot())
    }
}

/// Checks that the agent has workers of `role`.
pub(super) fn check_role(spec: &WorkerSpec, role: &str) -> Result<(), RunError> {
    if role == spec.role() {
        return Ok(());
    }
    Err(RunError::UnknownRole {
        asked: role.to_owned(),
        has: spec.role().to_owned(),
    })
}

/// Converts an outcome to a result; `values` is called after a success.
pub(super) fn result(
    outcome: Outcome,
    values: impl FnOnce() -> Result<BTreeMap<Rank, Value>, RunError>,
    failure: impl Fn(&Failure) -> ProcessFailure,
) -> Result<RunResult, RunError> {
    match outcome {
        Outcome::Succeeded => Ok(RunResult::succeeded(values()?)),
        Outcome::Failed {
            failures,
            root_cause,
            finality,
        } => {
            let first = failures.get(root_cause);
            let first = first.and_then(|failure| failure.evidence.rank);
            let failures = failures.iter().map(failure).collect();
            Ok(RunResult {
                first,
                finality: Some(finality),
                ..RunResult::failed(failures)
            })
        }
        Outcome::Signalled {
            signal,
            workers_started,
        } => Err(RunError::Signalled {
            signal,
            workers_started,
        }),
        Outcome::Preempted { signal, .. } => Err(RunError::Signalled {
            signal,
            workers_started: true,
        }),
        Outcome::Error(error) => Err(error.into()),
    }
}

/// Notifies the event handlers of a specification that no more events follow.
pub(super) fn finish_handlers(spec: &WorkerSpec) {
    for handler in &spec.event_handlers {
        let mut handler = handler.lock().unwrap_or_else(PoisonError::into_inner);
        handler.finish();
    }
}
