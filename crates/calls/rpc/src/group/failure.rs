//! Conversion of errors of the protocol crate and the store to `RpcError`.

use rdzv_rpc_proto::device::DeviceFault;
use rdzv_rpc_proto::directory::{BadRecord, JoinRefusal, Mismatch, NotUnique};
use rdzv_rpc_proto::worker::BadName;
use rdzv_store::StoreError;

use crate::{RpcError, RpcErrorKind};

pub(super) fn store_failed(doing: &str, error: &StoreError) -> RpcError {
    RpcError::new(RpcErrorKind::Store, format!("cannot {doing}: {error}"))
}

impl From<BadRecord> for RpcError {
    fn from(error: BadRecord) -> Self {
        Self::new(RpcErrorKind::Store, error.to_string())
    }
}

impl From<BadName> for RpcError {
    fn from(error: BadName) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<DeviceFault> for RpcError {
    fn from(error: DeviceFault) -> Self {
        let mut text = error.to_string();
        if let Some(node) = error.without_devices() {
            // On a host with accelerators, the user would not understand the number 0.
            text = format!(
                "{text}\n{node} counts no accelerators: it finds none, or has no device backend\nhelp: \
                 check CUDA_VISIBLE_DEVICES on {node}; in Rust, call `RpcAgentBuilder::device_backend`"
            );
        }
        Self::new(RpcErrorKind::DeviceMap, text)
    }
}

impl From<Mismatch> for RpcError {
    fn from(error: Mismatch) -> Self {
        Self::new(RpcErrorKind::GroupMismatch, error.to_string())
    }
}

impl From<NotUnique> for RpcError {
    fn from(error: NotUnique) -> Self {
        let kind = match error {
            NotUnique::Name { .. } => RpcErrorKind::DuplicateName,
            NotUnique::Id { .. } => RpcErrorKind::DuplicateId,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<JoinRefusal> for RpcError {
    fn from(error: JoinRefusal) -> Self {
        match error {
            JoinRefusal::Taken { clash, .. } => clash.into(),
            JoinRefusal::Devices(fault) => fault.into(),
            JoinRefusal::Over => Self::new(RpcErrorKind::GroupMismatch, error.to_string()),
        }
    }
}
