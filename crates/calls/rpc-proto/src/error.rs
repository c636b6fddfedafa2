//! Kinds of errors, encoded as numbers on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kind of an error: a number on the wire, never derived from a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RpcErrorKind {
    /// An argument is invalid.
    InvalidArgument,
    /// There is no process-wide agent.
    NotInitialized,
    /// There is a process-wide agent already.
    AlreadyInitialized,
    /// No worker in the group has this name or id.
    UnknownWorker,
    /// Two workers have the same name.
    DuplicateName,
    /// Two workers have the same id.
    DuplicateId,
    /// Workers disagree about the group's size or kind (static or dynamic).
    GroupMismatch,
    /// The device maps in the group are inconsistent, or no map covers a tensor.
    DeviceMap,
    /// A value cannot be encoded, or bytes cannot be decoded.
    Serialization,
    /// The callee does not offer this method.
    NoSuchMethod,
    /// The operation did not finish in time.
    Deadline,
    /// The operation was cancelled.
    Cancelled,
    /// The connection closed, or the worker was declared lost. A retry may help.
    PeerLost,
    /// The calls in flight exceed the limits. A retry after a delay may help.
    Overloaded,
    /// The agent of this worker or of the callee is shutting down.
    Stopping,
    /// The called function failed.
    Remote,
    /// A peer violated the protocol, for example with a wrong version or size.
    Protocol,
    /// An operation on the store failed.
    Store,
    /// A local failure: a lack of resources, a callback panic, or a bug in rdzv.
    Internal,
}

impl RpcErrorKind {
    /// `true` if the same call may succeed on a retry.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::PeerLost | Self::Overloaded)
    }
}

impl fmt::Display for RpcErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}
