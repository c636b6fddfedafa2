//! Operations that an accelerator backend must implement.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;
use rdzv_rpc_proto::rref::Member;

use crate::RpcError;

/// Memory on a device, freed on drop.
pub trait DeviceMemory: Any + Send + Sync + fmt::Debug {
    /// Returns the device on which the memory is allocated.
    fn device(&self) -> Device;

    /// Returns the size in bytes.
    fn len(&self) -> usize;

    /// Returns the address on the device, for other libraries of this process.
    ///
    /// `None` if the memory has no address.
    fn address(&self) -> Option<u64> {
        None
    }

    /// `true` if the memory has a length of 0 bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Point in the work queue of a device, which the device may not have reached.
pub trait DeviceEvent: Send + Sync + fmt::Debug {
    /// Blocks until the device has done all work that was queued before this point.
    ///
    /// This may return earlier if the backend orders all later uses of the memory after that work.
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

    /// Copies bytes from a device to the host after the work that fills them.
    ///
    /// # Errors
    ///
    /// Returns the failure of the copy or of that work.
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

    /// Returns the part of the backend that lends memory to processes on this host.
    ///
    /// `None` if all tensors go through host memory.
    fn lender(&self) -> Option<&dyn DeviceLender> {
        None
    }

    /// Returns names and values that describe the state, for debugging.
    fn facts(&self) -> Vec<(String, String)> {
        Vec::new()
    }
}

/// Memory that a copy fills, with the event after the copy.
pub type FilledMemory = (Arc<dyn DeviceMemory>, Arc<dyn DeviceEvent>);

/// Way in which a message carries device memory.
#[derive(Debug)]
pub enum Loan {
    /// Through host memory, with [`DeviceBackend::copy_out`].
    Copied,
    /// Through host memory, until the peer has opened the memory of this card.
    Unmet(Bytes),
    /// As this description, which [`DeviceLender::borrow`] reads.
    ///
    /// The bytes are in an [`Arena`](crate::Arena). The memory is lent until the bytes are free.
    Described(Bytes),
}

/// Lender and borrower of device memory between processes on one host.
///
/// A process introduces its memory with a *card* before it lends a part of the memory. The peer
/// reports whether it can use the memory, because a container or a driver may prevent that.
pub trait DeviceLender {
    /// Lends a range of device memory to the device `target` of a peer.
    ///
    /// # Errors
    ///
    /// Returns the error if the memory cannot be read.
    fn lend(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
        to: Member,
        target: Device,
    ) -> Result<Loan, RpcError>;

    /// Starts a copy of memory that a peer has lent, to new memory on a device.
    ///
    /// The backend keeps the description until the copy is done.
    ///
    /// # Errors
    ///
    /// Returns the error if the description is invalid, or the copy cannot be started.
    fn borrow(
        &self,
        described: &Bytes,
        len: usize,
        device: Device,
        from: Member,
    ) -> Result<FilledMemory, RpcError>;

    /// Opens the memory of a peer.
    ///
    /// # Errors
    ///
    /// Returns the reason why this process cannot use the memory.
    fn meet(&self, card: &Bytes, from: Member) -> Result<(), String>;

    /// Handles the answer of a peer to a card.
    fn met(&self, card: &Bytes, to: Member, answer: Result<(), String>);

    /// Handles the end of a connection to a peer, which may be dead.
    fn lost(&self, peer: Member);
}
