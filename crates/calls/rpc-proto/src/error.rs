//! Kinds of errors: numbers on the wire, names in the records of a store.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kind of an error: a number on the wire, a name in the records of a store.
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
    /// Devices or device maps of a group are inconsistent, or exclude a tensor.
    DeviceMap,
    /// A value cannot be encoded, or bytes cannot be decoded.
    Serialization,
    /// The callee does not offer this method.
    NoSuchMethod,
    /// The operation did not finish in time.
    Deadline,
    /// The operation was cancelled.
    Cancelled,
    /// The connection failed or ended, or the worker is lost. A retry may help.
    PeerLost,
    /// The calls in flight have reached a limit. A later retry may help.
    Overloaded,
    /// The agent of this worker or of the callee is stopping or has stopped.
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
