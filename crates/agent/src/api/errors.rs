//! Errors of specifications and runs. Failures of workers are no errors; they are a
//! [`RunResult`](super::RunResult).

use std::io;

use thiserror::Error;

use super::{DEFAULT_ROLE, SupervisorError};
use crate::AgentError;
use crate::topology::PlacementError;

/// A specification that cannot be used.
#[derive(Debug, Error)]
pub enum SpecError {
    /// There would be no workers.
    #[error("local_world_size is 0: a node has at least one worker")]
    NoWorkers,
    /// There would be no time between two looks.
    #[error("monitor_interval is 0: it has to be more, such as 100 ms")]
    NoInterval,
    /// A role without a name.
    #[error("the role is empty: give the workers one, such as '{DEFAULT_ROLE}'")]
    NoRole,
    /// The entry point names nothing.
    #[error("the entry point is empty: name a program, a script, a module or a function")]
    NoEntrypoint,
    /// A socket was given where none can be used.
    #[error(
        "a kept socket for the master port can be used where the agent of a single node hosts the \
         workers' store; {0}"
    )]
    KeptSocket(&'static str),
    /// A success cannot be a failure.
    #[error("exit code 0 is a success, so it cannot be among those that are not retried")]
    RetriedSuccess,
    /// The text says what is wrong with the rendezvous.
    #[error("{0}")]
    Rendezvous(String),
    /// There is no Python for a script or module.
    #[error(
        "no Python interpreter: none in VIRTUAL_ENV and no python3 or python in PATH; activate an \
         environment, set PYTHON_EXEC, or use a command"
    )]
    NoPython,
    /// Workers cannot be bound to processors.
    #[error(transparent)]
    Placement(#[from] PlacementError),
    /// An event handler was named that there is not.
    #[error("there is no event handler '{name}': the registry has {known}")]
    NoEventHandler {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A function runs in a copy of this program, which was not found.
    #[error("find this program, to run a function in a copy of it: {0}")]
    OwnProgram(#[source] io::Error),
}

/// The error that kept an agent from its work. Failures of workers are no errors; they are a
/// [`RunResult`](super::RunResult).
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
