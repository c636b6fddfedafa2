//! Operations that an accelerator backend must support.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;

use crate::RpcError;

/// Memory on a device, freed on drop.
pub trait DeviceMemory: Any + Send + Sync + fmt::Debug {
    /// Returns the device of the memory.
    fn device(&self) -> Device;

    /// Returns the size in bytes.
    fn len(&self) -> usize;

    /// `true` if the memory has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A point in the queued work of a device, which it may not have reached yet.
pub trait Event: Send + Sync + fmt::Debug {
    /// Returns when the device has done all work that was queued before this point.
    ///
    /// # Errors
    ///
    /// Returns the failure of that work.
    fn wait(&self) -> Result<(), RpcError>;
}

/// Accelerators of a host.
pub trait DeviceBackend: Send + Sync + fmt::Debug {
    /// Returns the number of accelerators.
    fn count(&self) -> u32;

    /// Allocates memory of a device; its content is undefined.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if there is no such
    /// device, or it has no memory left.
    fn alloc(&self, device: Device, len: usize) -> Result<Arc<dyn DeviceMemory>, RpcError>;

    /// Starts to copy from the host to the beginning of some memory.
    ///
    /// The memory is at least as long as the bytes. The backend may keep the bytes until the copy
    /// is done.
    ///
    /// # Errors
    ///
    /// Returns the failure to start the copy. An [`Event`] reports later failures.
    fn copy_in(&self, from: Bytes, to: &Arc<dyn DeviceMemory>) -> Result<(), RpcError>;

    /// Copies bytes of memory to the host, after all queued work of its device.
    ///
    /// # Errors
    ///
    /// Returns the failure of that work.
    fn copy_out(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
    ) -> Result<Bytes, RpcError>;

    /// Returns the point after all work queued on a device until now.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if there is no such
    /// device.
    fn event(&self, device: Device) -> Result<Arc<dyn Event>, RpcError>;
}
