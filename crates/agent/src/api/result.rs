//! How a run, or one look at the workers, came out.

use std::collections::BTreeMap;

use rdzv_core::rank::Rank;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{ProcessFailure, WorkerGroupFailure, WorkerState};

/// How a run came out, or how a supervisor finds its workers: a state, and what belongs to it.
#[derive(Debug, Clone, PartialEq)]
pub struct RunResult {
    /// `Succeeded` or `Failed` after a run; from a supervisor also `Healthy`, `Unhealthy` and
    /// `Unknown`.
    pub state: WorkerState,
    /// What the workers returned, as JSON, by global rank; filled for functions that returned, and
    /// empty for commands. The workers of this node only.
    pub return_values: BTreeMap<Rank, Value>,
    /// The failures of the last attempt by global rank. The workers of this node only.
    pub failures: BTreeMap<Rank, ProcessFailure>,
    /// The global rank of the failure that came first.
    pub first: Option<Rank>,
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
