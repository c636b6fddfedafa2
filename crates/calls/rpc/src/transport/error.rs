//! Why there is no connection.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Why there is no connection.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransportError {
    /// This worker will have nothing to do with the peer. The peer was told.
    #[error("{peer} is refused: {reason}")]
    Refused {
        /// Who was refused.
        peer: String,
        /// Why.
        reason: String,
    },
    /// The peer will have nothing to do with this worker.
    #[error("{peer} refuses this worker: {reason}")]
    RefusedBy {
        /// Who refused.
        peer: String,
        /// Why, in its words.
        reason: String,
    },
    /// The peer cannot be reached. Trying again may help.
    #[error("{peer} cannot be reached: {source}")]
    Unreachable {
        /// Who should have been reached.
        peer: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
    /// The peer was silent for too long. Trying again may help.
    #[error("{peer}: nothing {what} within {waited:?}")]
    Late {
        /// Who was silent.
        peer: String,
        /// What should have happened.
        what: &'static str,
        /// How long was waited.
        waited: Duration,
    },
    /// Something on this side does not work.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system says.
        #[source]
        source: io::Error,
    },
}

impl TransportError {
    /// For `map_err` of a call of the system.
    pub(super) fn system<E: Into<io::Error>>(what: impl Into<String>) -> impl FnOnce(E) -> Self {
        move |error| Self::System {
            what: what.into(),
            source: error.into(),
        }
    }
}
