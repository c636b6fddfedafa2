//! Kinds of errors, as numbers on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Kind of an error: a number on the wire, never derived from a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RpcErrorKind {
    /// An argument is wrong; nothing was sent.
    InvalidArgument,
    /// This process has no agent.
    NotInitialized,
    /// This process already has an agent.
    AlreadyInitialized,
    /// No worker of the group has this name or id.
    UnknownWorker,
    /// Two workers have the same name.
    DuplicateName,
    /// Two workers have the same id.
    DuplicateId,
    /// Workers disagree about the group: its size, or its kind (static or dynamic).
    GroupMismatch,
    /// The device maps of the group do not fit together.
    DeviceMap,
    /// A value cannot be encoded, or bytes cannot be decoded.
    Serialization,
    /// The callee has no such method.
    NoSuchMethod,
    /// The operation did not end in time.
    Deadline,
    /// The operation was cancelled.
    Cancelled,
    /// The connection closed, or the worker was declared dead. A retry may help.
    PeerLost,
    /// The calls in flight exceed the limits. A later retry helps.
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
    /// `true` if the same call may succeed when it is repeated.
    pub fn is_retryable(self) -> bool {
        matches!(self, Self::PeerLost | Self::Overloaded)
    }
}

impl fmt::Display for RpcErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, formatter)
    }
}
