//! The kinds of errors, as numbers on the wire.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The kind of an error. A number on the wire, never derived from a text.
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
    /// More is in flight than the limits allow. Trying again later helps.
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
