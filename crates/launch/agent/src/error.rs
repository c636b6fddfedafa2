//! Reasons why an agent could not do its work.
//! Worker failures are not errors; they are an `Outcome`.

use std::io;
use std::path::PathBuf;

use rdzv_rendezvous::RendezvousError;
use thiserror::Error;

/// A supervisor could not do what the agent requested.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SupervisorError(
    /// Action that was tried, its target, and the reason of the failure.
    pub String,
);

/// Why an agent could not do its work.
#[derive(Debug, Error)]
pub enum AgentError {
    /// The program of the workers does not exist.
    #[error("[Errno 2] No such file or directory: '{program}'")]
    ProgramNotFound {
        /// As the user wrote it.
        program: String,
    },
    /// The check of this node failed, so it has left the others.
    #[error("this node withdraws, because its check `{command}` failed: {reason}")]
    NodeCheck {
        /// The command line.
        command: String,
        /// The end of it, and its last line.
        reason: String,
    },
    /// A worker could not be started.
    #[error("start the worker with local rank {local_rank}, '{program}': {source}")]
    Spawn {
        /// Which.
        local_rank: u32,
        /// Program that it should have executed, as the user wrote it.
        program: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Log files or directories could not be made.
    #[error("make {path} for the workers' logs: {source}")]
    Logs {
        /// Which path.
        path: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The named pipe of the watchdog or of heartbeats could not be made.
    #[error("make the named pipe {}: {source}", path.display())]
    Pipe {
        /// Path of the pipe.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The nodes did not find one another.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The store of the workers or of the agents failed.
    #[error(transparent)]
    Store(#[from] rdzv_store::StoreError),
    /// A supervisor could not do what the agent requested.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// A supervisor does not know how its workers are.
    #[error("[{role}] Worker group in {state} state")]
    Unrecoverable {
        /// The role of the workers.
        role: String,
        /// The state that was found.
        state: &'static str,
    },
    /// The operating system refused something that an agent cannot do without.
    #[error("{what}: {source}")]
    System {
        /// Action that was tried.
        what: &'static str,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// Another node failed for good, so no further attempt can succeed.
    #[error("node {node} has failed for good, so this node has stopped too: {reason}")]
    PeerFailed {
        /// Which.
        node: String,
        /// Reason that the node reported.
        reason: String,
    },
    /// Another node ended the run while this one was still at work.
    #[error(
        "another node has ended run '{run_id}' without saying why, so this node has stopped too: \
         look at the logs of the others for the first failure"
    )]
    RunClosed {
        /// Which run.
        run_id: String,
    },
    /// The process that watches over the agent was killed.
    /// The agent stopped the workers immediately.
    #[error("the keeper of this run was killed (SIGKILL?), so the workers were stopped")]
    KeeperLost,
    /// An input of the plan cannot be used; the text says which and why.
    #[error("{0}")]
    Plan(String),
}

impl AgentError {
    /// The name of torchelastic's exception for it.
    pub fn class(&self) -> &'static str {
        match self {
            Self::ProgramNotFound { .. } => "FileNotFoundError",
            Self::Spawn { .. } | Self::Logs { .. } | Self::Pipe { .. } | Self::System { .. } => {
                "OSError"
            }
            Self::Rendezvous(error) => error.class(),
            Self::RunClosed { .. } => "RendezvousClosedError",
            Self::Store(_) => "DistStoreError",
            Self::Plan(_) => "ValueError",
            Self::PeerFailed { .. }
            | Self::NodeCheck { .. }
            | Self::KeeperLost
            | Self::Supervisor(_)
            | Self::Unrecoverable { .. } => "RuntimeError",
        }
    }
}

/// The error of something that the operating system refused: `what` was tried.
pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> AgentError {
    move |source| AgentError::System {
        what,
        source: source.into(),
    }
}
