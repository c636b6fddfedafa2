//! What a kind of accelerator has to be able to do.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;

use crate::RpcError;

/// Memory on a device. Freed when it is dropped.
pub trait DeviceMemory: Any + Send + Sync + fmt::Debug {
    /// Where it is.
    fn device(&self) -> Device;

    /// How many bytes it has.
    fn len(&self) -> usize;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A point in the work of a device, which may be still to come.
pub trait Event: Send + Sync + fmt::Debug {
    /// Returns when the device has done all work that was given to it before this point.
    ///
    /// # Errors
    ///
    /// What went wrong with that work.
    fn wait(&self) -> Result<(), RpcError>;
}

/// The accelerators of a host.
pub trait DeviceBackend: Send + Sync + fmt::Debug {
    /// How many there are.
    fn count(&self) -> u32;

    /// So much memory of a device; what is in it is undefined.
    ///
    /// # Errors
    ///
    /// Kind InvalidArgument if there is no such device, or it has no memory left.
    fn alloc(&self, device: Device, len: usize) -> Result<Arc<dyn DeviceMemory>, RpcError>;

    /// Begins to copy from the host to the beginning of some memory, which is as long at least.
    /// The bytes are not read by anybody else, so they may be used until the copy is done.
    ///
    /// # Errors
    ///
    /// If it cannot begin. What happens later, an [`Event`] tells.
    fn copy_in(&self, from: Bytes, to: &Arc<dyn DeviceMemory>) -> Result<(), RpcError>;

    /// Copies some bytes of memory to the host, after all work that its device has been given.
    ///
    /// # Errors
    ///
    /// What went wrong with that work.
    fn copy_out(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
    ) -> Result<Bytes, RpcError>;

    /// The point after the work that a device has been given so far.
    ///
    /// # Errors
    ///
    /// Kind InvalidArgument if there is no such device.
    fn event(&self, device: Device) -> Result<Arc<dyn Event>, RpcError>;
}
