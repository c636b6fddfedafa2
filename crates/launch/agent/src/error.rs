//! Errors of the agent itself.
//! Failures of workers are not errors; an `Outcome` describes them.

use std::io;
use std::path::PathBuf;

use rdzv_rendezvous::RendezvousError;
use thiserror::Error;

/// Request of the agent that its supervisor could not carry out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct SupervisorError(
    /// Attempted action, its target, and the reason of the failure.
    pub String,
);

/// Reason why an agent could not do its work.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The program of the workers does not exist.
    #[error("[Errno 2] No such file or directory: '{program}'")]
    ProgramNotFound {
        /// Program as the user specified it.
        program: String,
    },
    /// The check of this node failed, so this node has left the job.
    #[error("this node withdraws, because its check `{command}` failed: {reason}")]
    NodeCheck {
        /// Command line of the check.
        command: String,
        /// Exit of the command and the last line of its output.
        reason: String,
    },
    /// A worker could not be started.
    #[error("cannot start the worker with local rank {local_rank}, '{program}': {source}")]
    Spawn {
        /// Local rank of the worker.
        local_rank: u32,
        /// Program of the worker, as the user specified it.
        program: String,
        /// Reason that the system reported.
        #[source]
        source: io::Error,
    },
    /// The agent could not make a log file or directory.
    #[error("cannot create {path} for the workers' logs: {source}")]
    Logs {
        /// Path that could not be made.
        path: String,
        /// Reason that the system reported.
        #[source]
        source: io::Error,
    },
    /// The agent could not make a named pipe for heartbeats or timers.
    #[error("cannot create the named pipe or its directory, {}: {source}", path.display())]
    Pipe {
        /// Path of the pipe or directory.
        path: PathBuf,
        /// Reason that the system reported.
        #[source]
        source: io::Error,
    },
    /// The rendezvous failed.
    #[error(transparent)]
    Rendezvous(#[from] RendezvousError),
    /// The store of the workers or of the agents failed.
    #[error(transparent)]
    Store(#[from] rdzv_store::StoreError),
    /// The supervisor could not carry out a request of the agent.
    #[error(transparent)]
    Supervisor(#[from] SupervisorError),
    /// The supervisor does not know the state of its workers.
    #[error("[{role}] Worker group in {state} state")]
    Unrecoverable {
        /// Role of the workers.
        role: String,
        /// State that the agent found.
        state: &'static str,
    },
    /// The operating system refused an operation that the agent needs.
    #[error("cannot {what}: {source}")]
    System {
        /// Attempted action.
        what: &'static str,
        /// Reason that the system reported.
        #[source]
        source: io::Error,
    },
    /// The system denies `pidfd_open`.
    #[error(
        "cannot watch the keeper with pidfd_open: {0}\n\
         help: use Linux 5.3 or newer and, in a container, a seccomp profile that permits \
         pidfd_open and clone3 (Docker 20.10.10 or newer)"
    )]
    NoPidfd(#[source] io::Error),
    /// Another node reported a final failure, so no further attempt can succeed.
    #[error("node {node} has failed permanently, so this node has stopped too: {reason}")]
    PeerFailed {
        /// Node that failed.
        node: String,
        /// Reason that the node reported.
        reason: String,
    },
    /// Another node ended the run while this node was still working.
    #[error(
        "another node has ended run '{run_id}' without a reason, so this node has stopped too\n\
         help: check the logs of the other nodes for the first failure"
    )]
    RunClosed {
        /// Id of the run.
        run_id: String,
    },
    /// The keeper or the guard, which watch over the agent, was killed.
    /// The agent stopped the workers within a fraction of a second.
    #[error(
        "the keeper or the guard of this run was killed, probably by SIGKILL, so the workers were \
         stopped"
    )]
    KeeperLost,
    /// Unusable input of the plan; the text names the input and the reason.
    #[error("{0}")]
    Plan(String),
}

impl AgentError {
    /// Returns the name of the corresponding exception of Python or torchelastic.
    pub fn class(&self) -> &'static str {
        match self {
            Self::ProgramNotFound { .. } => "FileNotFoundError",
            Self::Spawn { .. }
            | Self::Logs { .. }
            | Self::Pipe { .. }
            | Self::NoPidfd(_)
            | Self::System { .. } => "OSError",
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

/// Creates the error for an operation that the operating system refused.
/// `what` describes the attempted action.
pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> AgentError {
    move |source| AgentError::System {
        what,
        source: source.into(),
    }
}
