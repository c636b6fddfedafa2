//! How a run, or one look at the workers, came out: values, or the failures of workers.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;
use serde::de::DeserializeOwned;
use serde_json::Value;
use thiserror::Error;

use super::{WorkerId, WorkerState};
use crate::{Cause, Exit, Failure, Finality};

/// How a run came out, or how a supervisor finds its workers: a state, and what belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// `Succeeded` or `Failed` after a run; from a supervisor also `Healthy`, `Unhealthy` and
    /// `Unknown`.
    pub state: WorkerState,
    /// What the workers returned, as JSON, by global rank; filled for functions that returned, and
    /// empty for commands. The workers of this node only.
    pub return_values: BTreeMap<Rank, Value>,
    /// The failures of the last attempt by global rank: those of the workers of this node, and the first
    /// one of the job if that was on another node.
    pub failures: BTreeMap<Rank, ProcessFailure>,
    /// The global rank of the failure that came first.
    pub first: Option<Rank>,
    /// The reason why no restart followed, after a run that failed.
    pub finality: Option<Finality>,
}

/// The first torchelastic's name for what a look at the workers brings.
pub type MonitorResult = RunResult;

impl RunResult {
    /// Workers that run, or a state with nothing to add.
    pub fn of_state(state: WorkerState) -> Self {
        Self {
            state,
            return_values: BTreeMap::new(),
            failures: BTreeMap::new(),
            first: None,
            finality: None,
        }
    }

    /// All workers have ended well, with these values.
    pub fn succeeded(return_values: BTreeMap<Rank, Value>) -> Self {
        Self {
            return_values,
            ..Self::of_state(WorkerState::Succeeded)
        }
    }

    /// These workers have failed, in this order.
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

    /// Whether the workers failed.
    pub fn is_failed(&self) -> bool {
        matches!(self.state, WorkerState::Failed | WorkerState::Unhealthy)
    }

    /// What one worker returned; `None` if it returned nothing, an error if that is no `T`.
    pub fn return_value<T: DeserializeOwned>(
        &self,
        rank: Rank,
    ) -> Result<Option<T>, serde_json::Error> {
        let value = self.return_values.get(&rank).cloned();
        value.map(serde_json::from_value).transpose()
    }

    /// The failure that came first.
    pub fn first_failure(&self) -> Option<&ProcessFailure> {
        self.first
            .and_then(|rank| self.failures.get(&rank))
            .or_else(|| self.failures.values().next())
    }

    /// The failures as one text per global rank: the view that the first torchelastic gave.
    pub fn exceptions(&self) -> BTreeMap<Rank, String> {
        self.failures
            .iter()
            .map(|(rank, failure)| (*rank, failure.to_string()))
            .collect()
    }

    /// The values, or the failures as an error that names the entry point.
    pub fn into_values(self, name: &str) -> Result<BTreeMap<Rank, Value>, WorkerGroupFailure> {
        if self.is_failed() {
            Err(WorkerGroupFailure::new(name, self))
        } else {
            Ok(self.return_values)
        }
    }
}

/// How one worker failed. Named as in torchelastic, although a worker need not be a process.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessFailure {
    /// Its global rank.
    pub rank: Rank,
    /// Its local rank.
    pub local_rank: LocalRank,
    /// Where it ran, if it was ever started.
    pub id: Option<WorkerId>,
    /// How it ended.
    pub exit: Exit,
    /// When: what its error file says, else when its end was seen.
    pub time: Wall,
    /// True if the agent had told it to stop before it ended.
    pub stopped_by_agent: bool,
    /// Why, as far as that can be known; its text is one line.
    pub cause: Cause,
    /// The error file that it left.
    pub error_file: Option<PathBuf>,
    /// What is in that file, if that is JSON of the known forms.
    pub error: Option<Value>,
}

impl ProcessFailure {
    /// A failure of which nothing is known but who, how and when.
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
            id: evidence.pid.map(WorkerId::Process),
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
            Some(WorkerId::Process(pid)) => write!(formatter, ", pid {pid}")?,
            Some(WorkerId::Remote(name)) => write!(formatter, ", at {name}")?,
            None => {}
        }
        write!(formatter, "): {}", self.cause)
    }
}

/// The workers of a group failed, and no restart followed. The text says why, before the first failure.
#[derive(Debug, Clone, Error)]
#[error("{name} failed: {}", self.summary())]
pub struct WorkerGroupFailure {
    /// What ran: the name of the entry point.
    pub name: String,
    /// How the run came out.
    result: RunResult,
}

impl WorkerGroupFailure {
    /// From the result of a run that failed.
    pub fn new(name: impl Into<String>, result: RunResult) -> Self {
        Self {
            name: name.into(),
            result,
        }
    }

    /// The failures by global rank.
    pub fn failures(&self) -> &BTreeMap<Rank, ProcessFailure> {
        &self.result.failures
    }

    /// The failure that came first: the root cause. `None` only if the agent that made the result
    /// gave no failure at all.
    #[doc(alias = "get_first_failure")]
    pub fn first_failure(&self) -> Option<&ProcessFailure> {
        self.result.first_failure()
    }

    /// The failures as one text per global rank, as the first torchelastic gave them.
    #[doc(alias = "get_worker_exceptions")]
    pub fn worker_exceptions(&self) -> BTreeMap<Rank, String> {
        self.result.exceptions()
    }

    /// The reason why no restart followed: the budget was used up, or the failure was final. `None` if the agent that
    /// made the result does not say.
    pub fn finality(&self) -> Option<Finality> {
        self.result.finality
    }

    fn summary(&self) -> String {
        let finality = self.finality().map(|finality| format!("{finality}: "));
        let finality = finality.unwrap_or_default();
        let Some(first) = self.first_failure() else {
            return format!("{finality}no worker is named");
        };
        match self.result.failures.len() {
            0 | 1 => format!("{finality}{first}"),
            all => format!("{finality}{first} (the first of {all} failures)"),
        }
    }
}
