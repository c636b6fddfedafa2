//! Backend for a host without accelerators.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;

use super::{DeviceBackend, DeviceEvent, DeviceMemory};
use crate::RpcError;

/// Backend without accelerators. Tensors on the CPU never call their backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOnly;

impl CpuOnly {
    /// Returns a shared `CpuOnly`, ready to pass to an agent.
    pub fn shared() -> Arc<dyn DeviceBackend> {
        Arc::new(Self)
    }
}

pub(super) fn no_such_device(device: Device, count: u32) -> RpcError {
    let message = format!("device {device} does not exist: accelerators of this worker: {count}");
    RpcError::invalid(message)
}

impl DeviceBackend for CpuOnly {
    fn count(&self) -> u32 {
        0
    }

    fn alloc(&self, device: Device, _: usize) -> Result<Arc<dyn DeviceMemory>, RpcError> {
        Err(no_such_device(device, 0))
    }

    fn copy_in(&self, _: Bytes, to: &Arc<dyn DeviceMemory>) -> Result<(), RpcError> {
        Err(no_such_device(to.device(), 0))
    }

    fn copy_out(&self, from: &Arc<dyn DeviceMemory>, _: Range<usize>) -> Result<Bytes, RpcError> {
        Err(no_such_device(from.device(), 0))
    }

    fn event(&self, device: Device) -> Result<Arc<dyn DeviceEvent>, RpcError> {
        Err(no_such_device(device, 0))
    }
}
