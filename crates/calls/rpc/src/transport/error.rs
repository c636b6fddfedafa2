//! Reasons for a failed connection.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Reason for a failed connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// This worker refuses the peer.
    #[error("refused {peer}: {reason}")]
    Refused {
        /// Refused peer.
        peer: String,
        /// Reason for the refusal.
        reason: String,
    },
    /// The peer refuses this worker.
    #[error("{peer} refused this worker: {reason}")]
    RefusedBy {
        /// Peer that refuses.
        peer: String,
        /// Reason, in the words of the peer.
        reason: String,
    },
    /// The peer cannot be reached. A retry may help.
    #[error("cannot connect to {peer}: {source}")]
    Unreachable {
        /// Peer that cannot be reached.
        peer: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The peer was silent for too long. A retry may help.
    #[error("{peer} did not {what} within {} ms", .waited.as_millis())]
    Late {
        /// Silent peer.
        peer: String,
        /// Expected event.
        what: &'static str,
        /// Duration of the wait.
        waited: Duration,
    },
    /// An operation on this side failed.
    #[error("cannot {what}: {source}")]
    System {
        /// Attempted operation.
        what: String,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

impl TransportError {
    /// Converts the error of a system call, for `map_err`.
    pub(super) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::System {
            what: what.into(),
            source: error.into(),
        }
    }
}
