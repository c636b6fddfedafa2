//! Conversion of failures of the reference state machine to errors.

use rdzv_rpc_proto::rref::Failure;

use crate::error::{RpcError, RpcErrorKind};

/// Conversion to the error of a call that could not use a reference.
impl From<Failure> for RpcError {
    fn from(failure: Failure) -> Self {
        let kind = match failure {
            Failure::CreationFailed => RpcErrorKind::Deadline,
            Failure::Deleted { .. } | Failure::Stopping => RpcErrorKind::Stopping,
            Failure::OwnerLost { .. } | Failure::Gone(_) => RpcErrorKind::PeerLost,
            Failure::GivenUp(_) => RpcErrorKind::Cancelled,
            Failure::Refused(..) => RpcErrorKind::Protocol,
        };
        Self::new(kind, failure.to_string())
    }
}
