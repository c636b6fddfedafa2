//! Failures of requests to etcd, with error texts, and limits on retries.

use std::fmt;
use std::time::{Duration, Instant};

use rdzv_core::escape::escape;
use rdzv_core::time::backoff;
use rdzv_store::{StoreError, subject};
use thiserror::Error;

use crate::RendezvousError;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Failure of a request after the last attempt.
#[derive(Debug, Error)]
#[error(
    "cannot {}: {cause} at {endpoint} after {:.1} s",
    subject(.operation, .key),
    .elapsed.as_secs_f64()
)]
pub(crate) struct Failure {
    /// Name of the request: `read`, `write`, ...
    pub(crate) operation: &'static str,
    /// Key of the request; empty if the request has none.
    pub(crate) key: String,
    /// Kind and address of the server.
    pub(crate) endpoint: String,
    /// Time from the first attempt to the failure.
    pub(crate) elapsed: Duration,
    /// Cause of the last failed attempt.
    pub(crate) cause: Cause,
}

/// Maximum number of bytes of a server's text that a message shows.
const SHOWN: usize = 512;

/// Shortens and escapes a text from the server for use in a message.
pub(crate) fn shown(text: &str) -> String {
    let end = text.floor_char_boundary(SHOWN);
    let start = escape(&text[..end]);
    if end < text.len() {
        format!("{start} ... ({} bytes)", text.len())
    } else {
        start
    }
}

/// Cause of a failed attempt.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum Cause {
    /// No server answered, or the server cannot serve requests at the moment.
    ///
    /// A retry may succeed.
    #[error("no answer ({reason})")]
    Away {
        /// Error of the last attempt.
        reason: String,
        /// `true` if the server may have executed the request anyway.
        maybe_done: bool,
    },
    /// The endpoint belongs to a different kind of server.
    #[error("the server is not an etcd server ({0})")]
    NotEtcd(String),
    /// The answer exceeds the maximum size.
    #[error("the answer exceeds the limit of {0}")]
    TooLong(String),
    /// The server processed the request but rejected it.
    #[error("etcd rejected the request: {message}")]
    Refused {
        /// gRPC status code.
        code: i64,
        /// Error message from the server.
        message: String,
    },
}

impl Cause {
    /// Creates a cause after which a retry may succeed.
    ///
    /// `maybe_done` is `true` if the server may have executed the request.
    pub(crate) fn away(reason: impl Into<String>, maybe_done: bool) -> Self {
        let reason = reason.into();
        Self::Away { reason, maybe_done }
    }

    /// Returns `true` if the same request may succeed later.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, Self::Away { .. })
    }

    fn remedy(&self) -> &'static str {
        match self {
            Self::Away { .. } => {
                "check that the server is running, that --rdzv-endpoint names its client port and \
                 that this host can reach it; --rdzv-conf read_timeout=SECONDS tolerates a longer \
                 outage"
            }
            Self::NotEtcd(_) => {
                "check the host and port of --rdzv-endpoint and --rdzv-conf protocol=http|https; \
                 etcd listens for clients on port 2379 by default"
            }
            Self::TooLong(_) => {
                "check that --rdzv-endpoint names the etcd server of this job, and check the value \
                 of that key"
            }
            Self::Refused { message, .. } if message.contains("too large") => {
                "start etcd with a larger --max-request-bytes (default 1.5 MiB), or store less \
                 under one key"
            }
            Self::Refused { message, .. } if message.contains("space exceeded") => {
                "compact and defragment etcd, or give it a larger --quota-backend-bytes"
            }
            Self::Refused { .. } => "check the message and the log of the server",
        }
    }
}

impl From<Failure> for RendezvousError {
    fn from(failure: Failure) -> Self {
        let subject = subject(failure.operation, &failure.key);
        Self::Unreachable {
            what: format!("cannot {subject}: {}", failure.cause),
            endpoint: failure.endpoint,
            elapsed: Some(failure.elapsed),
            remedy: failure.cause.remedy(),
        }
    }
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        Self::Service {
            operation: failure.operation,
            key: failure.key,
            what: failure.cause.to_string(),
            endpoint: failure.endpoint,
            elapsed: failure.elapsed,
            remedy: failure.cause.remedy(),
        }
    }
}

/// Timer for the retries of one request: its time limit and its backoff.
#[derive(Debug)]
pub(crate) struct Retry {
    started: Instant,
    limit: Duration,
    attempt: u32,
}

impl Retry {
    pub(crate) fn within(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit,
            attempt: 0,
        }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.elapsed())
    }

    /// Returns the backoff before the next attempt, or `None` after the time limit.
    pub(crate) fn pause(&mut self) -> Option<Duration> {
        let pause = backoff(self.attempt, fastrand::f64(), FIRST_PAUSE, LONGEST_PAUSE);
        self.attempt = self.attempt.saturating_add(1);
        let left = self.left();
        (!left.is_zero()).then(|| pause.min(left))
    }

    /// Returns the failure of the request after its last attempt.
    pub(crate) fn failure(
        &self,
        operation: &'static str,
        key: impl fmt::Display,
        endpoint: &str,
        cause: Cause,
    ) -> Failure {
        Failure {
            operation,
            key: key.to_string(),
            endpoint: endpoint.to_owned(),
            elapsed: self.elapsed(),
            cause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_end() {
        let mut retry = Retry::within(Duration::ZERO);
        assert_eq!(retry.pause(), None);
        let mut retry = Retry::within(Duration::from_secs(3600));
        let pauses: Vec<Duration> = (0..40).map_while(|_| retry.pause()).collect();
        assert_eq!(pauses.len(), 40);
        assert!(pauses.iter().all(|pause| *pause <= LONGEST_PAUSE));
        assert!(pauses[0] <= Duration::from_millis(75), "{:?}", pauses[0]);
    }

    #[test]
    fn a_failure_says_what_where_how_long_and_what_to_try() {
        let retry = Retry::within(Duration::ZERO);
        let cause = Cause::away("connection refused", false);
        let failure = retry.failure("read", "/a/b", "the etcd endpoint h:1 (10.0.0.1:1)", cause);
        let text = RendezvousError::from(failure).to_string();
        for part in [
            "cannot read key /a/b",
            "connection refused",
            "the etcd endpoint h:1 (10.0.0.1:1)",
            "after 0.0 s",
            "read_timeout",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
