//! Conversion of failures of remote references to errors.

use rdzv_rpc_proto::rref::ReferenceFailure;

use crate::error::{RpcError, RpcErrorKind};

/// Conversion to the error of a call that could not use a reference.
impl From<ReferenceFailure> for RpcError {
    fn from(failure: ReferenceFailure) -> Self {
        let kind = match failure {
            ReferenceFailure::CreationFailed => RpcErrorKind::Deadline,
            ReferenceFailure::Deleted { .. } | ReferenceFailure::Stopping => RpcErrorKind::Stopping,
            ReferenceFailure::OwnerLost { .. } | ReferenceFailure::Gone(_) => {
                RpcErrorKind::PeerLost
            }
            ReferenceFailure::GivenUp(_) => RpcErrorKind::Cancelled,
            ReferenceFailure::Refused(..) => RpcErrorKind::Protocol,
        };
        Self::new(kind, failure.to_string())
    }
}
