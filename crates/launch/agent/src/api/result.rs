//! Results of a run, or of one poll of the workers: values or failures.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use super::{WorkerLocation, WorkerState};
use rdzv_agent_proto::group::{Cause, Exit, Failure, Finality};

/// Result of a run, or of a poll by a supervisor: a state and its details.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// `Succeeded` or `Failed` after a run.
    /// From a supervisor also `Healthy`, `Unhealthy` and `Unknown`.
    pub state: WorkerState,
    /// Values that the workers of this node returned, as JSON, by global rank.
    /// Filled for functions that returned, or by the supervisor; empty for other processes.
    pub return_values: BTreeMap<Rank, Value>,
    /// Failures of the last attempt by global rank.
    /// These are the failures of this node's workers, and the first failure of the job if that was
    /// on another node.
    pub failures: BTreeMap<Rank, ProcessFailure>,
    /// Global rank of the failure that came first.
    pub first: Option<Rank>,
    /// Reason why no restart followed, after a run that failed.
    pub finality: Option<Finality>,
}

/// Name of the result of a poll in the first torchelastic.
pub type MonitorResult = RunResult;

impl RunResult {
    /// Returns the result for a state without details, such as `Healthy`.
    pub fn of_state(state: WorkerState) -> Self {
        Self {
            state,
            return_values: BTreeMap::new(),
            failures: BTreeMap::new(),
            first: None,
            finality: None,
        }
    }

    /// Returns the result for workers that all succeeded, with these values.
    pub fn succeeded(return_values: BTreeMap<Rank, Value>) -> Self {
        Self {
            return_values,
            ..Self::of_state(WorkerState::Succeeded)
        }
    }

    /// Returns the result for workers that have failed, in this order.
    pub fn failed(failures: Vec<ProcessFailure>) -> Self {
        Self {
            first: failures.first().map(|failure| failure.rank),
            failures: failures
                .into_iter()
                .map(|failure| (failure.rank, failure))
                .collect(),
            ..Self::of_state(WorkerState::Failed)
        }
    }

    /// Returns `true` if the workers failed or are unhealthy.
    pub fn is_failed(&self) -> bool {
        matches!(self.state, WorkerState::Failed | WorkerState::Unhealthy)
    }

    /// Returns the value of one worker.
    /// `None` if it returned nothing; an error if the value is not a `T`.
    ///
    /// # Errors
    ///
    /// Returns the error of the conversion of the value from JSON.
    pub fn return_value<T: DeserializeOwned>(
        &self,
        rank: Rank,
    ) -> Result<Option<T>, serde_json::Error> {
        let value = self.return_values.get(&rank).cloned();
        value.map(serde_json::from_value).transpose()
    }

    /// Returns the first failure; if it is unknown, that of the lowest rank.
    pub fn first_failure(&self) -> Option<&ProcessFailure> {
        self.first
            .and_then(|rank| self.failures.get(&rank))
            .or_else(|| self.failures.values().next())
    }

    /// Returns one text per failed global rank, like the first torchelastic.
    pub fn exceptions(&self) -> BTreeMap<Rank, String> {
        self.failures
            .iter()
            .map(|(rank, failure)| (*rank, failure.to_string()))
            .collect()
    }

    /// Returns the values, or the failures as an error that names the entry point.
    ///
    /// # Errors
    ///
    /// [`WorkerGroupFailure`] if the workers failed.
    pub fn into_values(self, name: &str) -> Result<BTreeMap<Rank, Value>, WorkerGroupFailure> {
        if self.is_failed() {
            Err(WorkerGroupFailure::new(name, self))
        } else {
            Ok(self.return_values)
        }
    }
}

/// Failure of one worker, named as in torchelastic.
/// The worker may not be a process.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProcessFailure {
    /// Global rank of the worker.
    pub rank: Rank,
    /// Local rank of the worker.
    pub local_rank: LocalRank,
    /// Location of the worker, if it was ever started.
    pub id: Option<WorkerLocation>,
    /// Exit of the worker.
    pub exit: Exit,
    /// Time in the worker's error file, or otherwise the agent's time of the exit.
    pub time: Wall,
    /// `true` if the agent stopped the worker for no fault of this worker.
    pub stopped_by_agent: bool,
    /// Cause, as far as it can be known; its text is one line.
    pub cause: Cause,
    /// Error file of the worker.
    pub error_file: Option<PathBuf>,
    /// Content of the error file, if that is JSON of a known form.
    pub error: Option<Value>,
}

impl ProcessFailure {
    /// Returns a failure with worker, exit and time only.
    pub fn new(rank: Rank, local_rank: LocalRank, exit: Exit, time: Wall) -> Self {
        Self {
            rank,
            local_rank,
            id: None,
            exit,
            time,
            stopped_by_agent: false,
            cause: match exit {
                Exit::Code(code) => Cause::ExitCode {
                    code,
                    last_line: None,
                },
                Exit::Signal(signal) => Cause::Signal { signal },
            },
            error_file: None,
            error: None,
        }
    }
}

impl From<&Failure> for ProcessFailure {
    fn from(failure: &Failure) -> Self {
        let evidence = &failure.evidence;
        let file = evidence.error_file.as_ref();
        Self {
            rank: evidence.rank.unwrap_or_default(),
            local_rank: evidence.local_rank.unwrap_or_default(),
            id: evidence.pid.map(WorkerLocation::Process),
            exit: evidence.exit.unwrap_or(Exit::Code(0)),
            time: evidence.time(),
            stopped_by_agent: evidence.stopped_by_agent,
            cause: failure.cause.clone(),
            error_file: file.map(|file| file.path.clone()),
            error: file.and_then(|file| file.content.clone().ok()),
        }
    }
}

impl fmt::Display for ProcessFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let local_rank = self.local_rank;
        write!(formatter, "rank {} (local rank {local_rank}", self.rank)?;
        match &self.id {
            Some(WorkerLocation::Process(pid)) => write!(formatter, ", pid {pid}")?,
            Some(WorkerLocation::Remote(name)) => write!(formatter, ", at {name}")?,
            None => {}
        }
        write!(formatter, "): {}", self.cause)
    }
}

/// Error that the workers of a group failed and no restart followed.
/// Its text gives the reason for the missing restart, then the first failure.
#[derive(Debug, Clone, Error)]
#[error("{name} failed: {}", self.summary())]
#[non_exhaustive]
pub struct WorkerGroupFailure {
    /// Name of the entry point.
    pub name: String,
    /// Result of the run.
    result: RunResult,
}

impl WorkerGroupFailure {
    /// Returns the failure for the result of a run that failed.
    pub fn new(name: impl Into<String>, result: RunResult) -> Self {
        Self {
            name: name.into(),
            result,
        }
    }

    /// Returns the failures by global rank.
    pub fn failures(&self) -> &BTreeMap<Rank, ProcessFailure> {
        &self.result.failures
    }

    /// Returns the failure that came first: the root cause.
    /// `None` only if the agent that made the result reported no failure.
    #[doc(alias = "get_first_failure")]
    pub fn first_failure(&self) -> Option<&ProcessFailure> {
        self.result.first_failure()
    }

    /// Returns one text per global rank, as in the first torchelastic.
    #[doc(alias = "get_worker_exceptions")]
    pub fn worker_exceptions(&self) -> BTreeMap<Rank, String> {
        self.result.exceptions()
    }

    /// Returns the reason why no restart followed.
    /// Either the restarts were used up, or the failure was final. `None` if the agent does not
    /// report a reason.
    pub fn finality(&self) -> Option<Finality> {
        self.result.finality
    }

    fn summary(&self) -> String {
        let finality = self.finality().map(|finality| format!("{finality}: "));
        let finality = finality.unwrap_or_default();
        let Some(first) = self.first_failure() else {
            return format!("{finality}no worker was reported");
        };
        match self.result.failures.len() {
            0 | 1 => format!("{finality}{first}"),
            all => format!("{finality}{first} (the first of {all} failures)"),
        }
    }
}
