//! Errors of calls, by kind.

use std::fmt;

use rdzv_core::escape::escape_lines;
pub use rdzv_rpc_proto::error::RpcErrorKind;
use rdzv_rpc_proto::gather::GatherError;
use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Failure of the called function, as reported by the callee.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, Error)]
#[error("{type_name}: {message}")]
pub struct RemoteError {
    /// Type of the error, e.g. `std::io::Error`.
    pub type_name: String,
    /// Message of the error.
    pub message: String,
    /// Messages of the error's causes, outermost first.
    pub causes: Vec<String>,
    /// Application-defined error code; 0 if there is none.
    pub code: i64,
    /// Application-defined bytes.
    pub details: Vec<u8>,
}

impl RemoteError {
    /// Creates the failure of a function that panicked.
    pub(crate) fn panic(message: String) -> Self {
        Self {
            type_name: "panic".to_owned(),
            message,
            ..Self::default()
        }
    }
}

/// Error from a call or from a group operation.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RpcError {
    /// Kind of the error.
    pub kind: RpcErrorKind,
    /// Worker to which the error relates, if any.
    pub worker: Option<WorkerInfo>,
    /// Name of the called method, if the error comes from a call.
    pub method: Option<String>,
    /// Text that describes the error and, if there is one, its remedy.
    pub message: String,
    /// Error or panic of the function, for [`RpcErrorKind::Remote`].
    pub remote: Option<Box<RemoteError>>,
}

impl From<GatherError> for RpcError {
    fn from(error: GatherError) -> Self {
        Self::new(error.kind, escape_lines(&error.message))
    }
}

impl RpcError {
    /// Creates an error with this kind and message.
    pub fn new(kind: RpcErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            worker: None,
            method: None,
            message: message.into(),
            remote: None,
        }
    }

    /// Creates the error of a worker that is shutting down.
    pub(crate) fn stopping() -> Self {
        Self::new(RpcErrorKind::Stopping, "this worker is shutting down")
    }

    /// Creates the error of a function that failed.
    pub(crate) fn of_function(remote: RemoteError) -> Self {
        let mut error = Self::new(RpcErrorKind::Remote, remote.to_string());
        error.remote = Some(Box::new(remote));
        error
    }

    /// Returns a function that wraps a failure as [`RpcErrorKind::Internal`].
    ///
    /// The message is `what`, a colon, and the failure.
    pub(crate) fn internal<E: fmt::Display>(what: &str) -> impl Fn(E) -> Self {
        move |error| Self::new(RpcErrorKind::Internal, format!("{what}: {error}"))
    }

    /// Creates the error of a deadline that these workers missed.
    ///
    /// `message` creates the text from their names and ranks.
    pub(crate) fn late(workers: &[WorkerInfo], message: impl FnOnce(&str) -> String) -> Self {
        let names = workers.iter();
        let names = names.map(|worker| format!("{} (rank {})", worker.name, worker.id));
        let names = names.collect::<Vec<_>>().join(", ");
        let error = Self::new(RpcErrorKind::Deadline, message(&names));
        match workers {
            [worker] => error.with_worker(worker.clone()),
            _ => error,
        }
    }

    /// Creates an error of kind [`RpcErrorKind::InvalidArgument`].
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(RpcErrorKind::InvalidArgument, message)
    }

    /// Sets the worker to which the error relates.
    #[must_use]
    pub fn with_worker(mut self, worker: WorkerInfo) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Sets the name of the called method.
    #[must_use]
    pub fn with_method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// `true` if the same call may succeed on a retry.
    pub fn is_retryable(&self) -> bool {
        self.kind.is_retryable()
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.method, &self.worker) {
            (Some(method), Some(worker)) => write!(formatter, "{method} on {worker}: ")?,
            (Some(method), None) => write!(formatter, "{method}: ")?,
            (None, Some(worker)) => write!(formatter, "{worker}: ")?,
            (None, None) => {}
        }
        formatter.write_str(&self.message)?;
        let causes = self.remote.iter().flat_map(|remote| &remote.causes);
        for cause in causes {
            write!(formatter, "\n  caused by: {cause}")?;
        }
        Ok(())
    }
}

impl std::error::Error for RpcError {}
