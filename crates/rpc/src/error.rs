//! What can go wrong with a call, told apart by kind.

use std::fmt;

use rdzv_rpc_proto::worker::WorkerInfo;
use serde::{Deserialize, Serialize};

/// What went wrong. A number on the wire, never read out of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RpcErrorKind {
    /// An argument cannot be right; nothing was sent.
    InvalidArgument,
    /// There is no agent in this process.
    NotInitialized,
    /// There is an agent in this process already.
    AlreadyInitialized,
    /// Nobody in the group has this name or id.
    UnknownWorker,
    /// Two workers have the same name.
    DuplicateName,
    /// Two workers have the same id.
    DuplicateId,
    /// Workers disagree about the group: its size, or whether it is static.
    GroupMismatch,
    /// The device maps of the group do not fit together.
    DeviceMap,
    /// A value cannot be turned into bytes, or bytes not into the value.
    Serialization,
    /// The callee has no such method.
    NoSuchMethod,
    /// The time for it is over.
    Deadline,
    /// It was cancelled.
    Cancelled,
    /// The connection closed, or the worker was declared dead. Trying again may help.
    PeerLost,
    /// More is on its way than the limits allow. Trying again later helps.
    Overloaded,
    /// An agent is shutting down.
    Stopping,
    /// The function that was called failed.
    Remote,
    /// A peer broke the protocol: version, checksum, size.
    Protocol,
    /// The store failed.
    Store,
    /// A defect of rdzv.
    Internal,
}

impl RpcErrorKind {
    /// Whether the same call may succeed if it is made again.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::PeerLost | Self::Overloaded)
    }
}

impl fmt::Display for RpcErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}

/// The failure of the function that was called, as the callee described it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct RemoteError {
    /// The type of the error, e.g. `std::io::Error`.
    pub type_name: String,
    /// Its text.
    pub message: String,
    /// The texts of what caused it, outermost first.
    pub causes: Vec<String>,
    /// A number of the application's own; 0 if it has none.
    pub code: i64,
    /// Bytes of the application's own.
    pub details: Vec<u8>,
}

/// The failure of a call or of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcError {
    /// What went wrong.
    pub kind: RpcErrorKind,
    /// The worker that it happened with, if it is about one.
    pub worker: Option<WorkerInfo>,
    /// The method that was called, if it is about a call.
    pub method: Option<String>,
    /// What happened and what to do, as a sentence.
    pub message: String,
    /// The error of the function, for [`RpcErrorKind::Remote`].
    pub remote: Option<Box<RemoteError>>,
}

impl RpcError {
    /// An error of this kind with this sentence.
    pub fn new(kind: RpcErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            worker: None,
            method: None,
            message: message.into(),
            remote: None,
        }
    }

    /// Says which worker it happened with.
    #[must_use]
    pub fn with_worker(mut self, worker: WorkerInfo) -> Self {
        self.worker = Some(worker);
        self
    }

    /// Says which method was called.
    #[must_use]
    pub fn with_method(mut self, method: impl Into<String>) -> Self {
        self.method = Some(method.into());
        self
    }

    /// Whether the same call may succeed if it is made again.
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

impl fmt::Display for RemoteError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.type_name, self.message)
    }
}

impl std::error::Error for RemoteError {}
