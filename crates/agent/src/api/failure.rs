//! Failures of workers, and what keeps an agent from its work.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use rdzv_core::rank::{LocalRank, Rank};
use rdzv_core::time::Wall;
use serde_json::Value;
use thiserror::Error;

use super::{RunResult, SpecError, SupervisorError, WorkerId};
use crate::{AgentError, Cause, Exit, Failure};

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

/// The workers of a group failed, and no restart was left (or the failure was of a kind that no
/// restart helps).
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

    fn summary(&self) -> String {
        let Some(first) = self.first_failure() else {
            return "no worker is named".to_owned();
        };
        match self.result.failures.len() {
            0 | 1 => first.to_string(),
            all => format!("{first} (the first of {all} failures)"),
        }
    }
}

/// What kept an agent from its work. Failures of workers are no errors; they are a [`RunResult`].
#[derive(Debug, Error)]
pub enum RunError {
    /// The agent was told to stop.
    #[error("the agent was told to stop by signal {signal}, and has stopped its workers")]
    Signalled {
        /// By which.
        signal: i32,
        /// False if that was before the first worker was started.
        workers_started: bool,
    },
    /// The agent manages other workers.
    #[error("this agent has workers of role '{has}', none of role '{asked}'")]
    UnknownRole {
        /// Which role was asked for.
        asked: String,
        /// Which it has.
        has: String,
    },
    /// Another agent runs in this process.
    #[error(
        "another LocalElasticAgent is running in this process: an agent clears away every process \
         that workers leave behind, so there can be one at a time; wait for it, or start the second \
         one in a process of its own"
    )]
    Busy,
    /// The arguments could not be handed over to a function, or its return value not be read.
    #[error("call the function '{function}' in the workers: {what}")]
    Function {
        /// Which.
        function: String,
        /// What was wrong.
        what: String,
    },
    /// The specification cannot be carried out here.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A supervisor could not do what it was asked for.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// A supervisor does not know how its workers are. Such a group cannot be recovered; its agent
    /// should end.
    #[error("[{role}] Worker group in {state} state")]
    Unrecoverable {
        /// The role of the workers.
        role: String,
        /// The state that was found.
        state: &'static str,
    },
    /// Anything else that an agent cannot do without.
    #[error(transparent)]
    Agent(#[from] Box<AgentError>),
}

impl From<AgentError> for RunError {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Supervisor(error) => Self::Supervisor(error),
            AgentError::Unrecoverable { role, state } => Self::Unrecoverable { role, state },
            error => Self::Agent(Box::new(error)),
        }
    }
}
