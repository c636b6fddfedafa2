//! Operations that an accelerator backend must implement.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;

use crate::RpcError;

/// Memory on a device, freed on drop.
pub trait DeviceMemory: Any + Send + Sync + fmt::Debug {
    /// Returns the device on which the memory is allocated.
    fn device(&self) -> Device;

    /// Returns the size in bytes.
    fn len(&self) -> usize;

    /// `true` if the memory has a length of 0 bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Point in the work queue of a device that may not have been reached yet.
pub trait DeviceEvent: Send + Sync + fmt::Debug {
    /// Blocks until the device has done all work that was queued before this point.
    ///
    /// # Errors
    ///
    /// Returns the failure of that work.
    fn wait(&self) -> Result<(), RpcError>;
}

/// Backend for the accelerators of a host.
pub trait DeviceBackend: Send + Sync + fmt::Debug {
    /// Returns the number of accelerators.
    fn count(&self) -> u32;

    /// Allocates memory on a device; its content is undefined.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if the device does
    /// not exist or is out of memory.
    fn alloc(&self, device: Device, len: usize) -> Result<Arc<dyn DeviceMemory>, RpcError>;

    /// Starts a copy from the host to the beginning of device memory.
    ///
    /// The memory is at least as long as the bytes. The backend may keep the bytes until the copy
    /// is done.
    ///
    /// # Errors
    ///
    /// Returns the error if the copy cannot be started. A [`DeviceEvent`] reports later failures.
    fn copy_in(&self, from: Bytes, to: &Arc<dyn DeviceMemory>) -> Result<(), RpcError>;

    /// Copies bytes from a device to the host, after all work queued on the device.
    ///
    /// # Errors
    ///
    /// Returns the failure of that work.
    fn copy_out(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
    ) -> Result<Bytes, RpcError>;

    /// Returns an event that follows all work queued on a device until now.
    ///
    /// # Errors
    ///
    /// [`RpcErrorKind::InvalidArgument`](crate::RpcErrorKind::InvalidArgument) if the device does
    /// not exist.
    fn event(&self, device: Device) -> Result<Arc<dyn DeviceEvent>, RpcError>;
}
