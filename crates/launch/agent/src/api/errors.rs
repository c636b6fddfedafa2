//! Errors of specifications and runs.
//! Failures of workers are not errors; they are a [`RunResult`](super::RunResult).

use std::io;

use thiserror::Error;

use crate::AgentError;
use crate::topology::PlacementError;

/// Error of a specification that cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// Setting that cannot be used; the text names it and the reason.
    #[error("{0}")]
    Setting(String),
    /// No Python was found for a script or module.
    #[error(
        "no Python interpreter: none in VIRTUAL_ENV and no python3 or python in PATH; activate an \
         environment, set PYTHON_EXEC, or use a command"
    )]
    NoPython,
    /// Workers cannot be bound to processors.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// The executable of this program, which runs the function, was not found.
    #[error("cannot find the path of this program to run a function in a copy of it: {0}")]
    OwnProgram(#[source] io::Error),
}

/// Error that prevented the agent's work.
/// Failures of workers are not errors; they are a [`RunResult`](super::RunResult).
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// A signal, a preemption or a `StopHandle` stopped the agent.
    #[error(
        "signal {signal} stopped the agent {}",
        if *.workers_started { "and its workers" } else { "before it started workers" }
    )]
    Signalled {
        /// Number of the signal.
        signal: i32,
        /// `false` if this agent has not started any worker.
        workers_started: bool,
    },
    /// The agent manages other workers.
    #[error("this agent has workers of role '{has}', none of role '{asked}'")]
    UnknownRole {
        /// Requested role.
        asked: String,
        /// Role of the agent's workers.
        has: String,
    },
    /// Another `LocalElasticAgent` runs in this process.
    #[error(
        "another LocalElasticAgent is running in this process: an agent kills all processes that \
         workers leave behind, so only one agent can run at a time; wait for it, or start the \
         second agent in a separate process"
    )]
    Busy,
    /// The function's arguments or a worker's return value could not be passed on.
    #[error("the call of function '{function}' in the workers failed: {what}")]
    Function {
        /// Name of the function.
        function: String,
        /// Description of the error.
        what: String,
    },
    /// The specification cannot be carried out here.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// The supervisor reported an unknown or impossible state of its workers.
    /// Such a group cannot be recovered; its agent should exit.
    #[error("[{role}] Worker group in {state} state")]
    Unrecoverable {
        /// Role of the workers.
        role: String,
        /// State that the agent found.
        state: &'static str,
    },
    /// Another error of the agent.
    #[error(transparent)]
    Agent(#[from] Box<AgentError>),
}

impl From<AgentError> for RunError {
    fn from(error: AgentError) -> Self {
        match error {
            AgentError::Unrecoverable { role, state } => Self::Unrecoverable { role, state },
            error => Self::Agent(Box::new(error)),
        }
    }
}
