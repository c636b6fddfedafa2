//! Memory behind tensors.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;

use crate::RpcError;
use crate::device::{DeviceBackend, DeviceEvent, DeviceMemory};

/// Immutable host or device memory that tensors share.
///
/// Clones refer to the same memory.
#[derive(Clone)]
pub struct Storage(Arc<Memory>);

enum Memory {
    Host(Bytes),
    /// Host memory that no device map applies to.
    Unmapped(Bytes),
    /// No memory, on this device.
    Nothing(Device),
    Device {
        memory: Arc<dyn DeviceMemory>,
        backend: Arc<dyn DeviceBackend>,
        /// Event after the last copy into the memory.
        filled: Arc<dyn DeviceEvent>,
    },
}

impl Storage {
    /// Creates a storage from host memory.
    pub fn host(bytes: Bytes) -> Self {
        Self(Arc::new(Memory::Host(bytes)))
    }

    /// Creates a storage from host memory to which no device map applies.
    pub fn unmapped(bytes: Bytes) -> Self {
        Self(Arc::new(Memory::Unmapped(bytes)))
    }

    /// Creates a storage from device memory that is complete at the event `filled`.
    pub fn device(
        memory: Arc<dyn DeviceMemory>,
        backend: Arc<dyn DeviceBackend>,
        filled: Arc<dyn DeviceEvent>,
    ) -> Self {
        Self(Arc::new(Memory::Device {
            memory,
            backend,
            filled,
        }))
    }

    /// Creates a storage without memory, for tensors without elements.
    pub(crate) fn nothing(device: Device) -> Self {
        Self(Arc::new(Memory::Nothing(device)))
    }

    /// Returns the device that holds the storage.
    pub fn location(&self) -> Device {
        match &*self.0 {
            Memory::Host(_) | Memory::Unmapped(_) => Device::CPU,
            Memory::Nothing(device) => *device,
            Memory::Device { memory, .. } => memory.device(),
        }
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        match &*self.0 {
            Memory::Host(bytes) | Memory::Unmapped(bytes) => bytes.len(),
            Memory::Nothing(_) => 0,
            Memory::Device { memory, .. } => memory.len(),
        }
    }

    /// `true` if the storage has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `true` if both are the same storage, not only equal bytes.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the bytes if they are in host memory.
    pub fn host_bytes(&self) -> Option<&Bytes> {
        match &*self.0 {
            Memory::Host(bytes) | Memory::Unmapped(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// Waits for the event of the device memory, and returns the memory.
    ///
    /// # Errors
    ///
    /// Returns the failure of a copy.
    pub fn device_memory(&self) -> Result<Option<&Arc<dyn DeviceMemory>>, RpcError> {
        match &*self.0 {
            Memory::Device { memory, filled, .. } => {
                filled.wait()?;
                Ok(Some(memory))
            }
            _ => Ok(None),
        }
    }

    /// Returns the device memory, into which copies may still be in progress.
    pub fn memory(&self) -> Option<&Arc<dyn DeviceMemory>> {
        match &*self.0 {
            Memory::Device { memory, .. } => Some(memory),
            _ => None,
        }
    }

    /// `true` if no device map applies to the storage.
    pub(crate) fn is_unmapped(&self) -> bool {
        matches!(&*self.0, Memory::Unmapped(_))
    }

    /// Returns bytes in host memory: shared if already there, copied otherwise.
    ///
    /// # Errors
    ///
    /// Returns the errors of the device.
    ///
    /// # Panics
    ///
    /// Panics if the range exceeds a storage in host memory.
    pub fn bytes(&self, range: Range<usize>) -> Result<Bytes, RpcError> {
        match &*self.0 {
            Memory::Host(bytes) | Memory::Unmapped(bytes) => Ok(bytes.slice(range)),
            Memory::Nothing(_) => Ok(Bytes::new().slice(range)),
            Memory::Device {
                memory,
                backend,
                filled,
            } => {
                filled.wait()?;
                backend.copy_out(memory, range)
            }
        }
    }

    pub(crate) fn id(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Storage({} bytes on {})",
            self.len(),
            self.location()
        )
    }
}

/// Copies message parts to their devices; returns one storage per part.
///
/// All copies to one device share one event.
pub(crate) fn put(
    backend: &Arc<dyn DeviceBackend>,
    devices: &[Device],
    parts: &[Bytes],
) -> Result<Vec<Storage>, RpcError> {
    let mut memories = Vec::new();
    for (device, part) in devices.iter().zip(parts) {
        if !device.is_cpu() {
            let memory = backend.alloc(*device, part.len())?;
            backend.copy_in(part.clone(), &memory)?;
            memories.push(memory);
        }
    }
    // One event for each device, after all its copies were queued.
    let mut events: Vec<(Device, Arc<dyn DeviceEvent>)> = Vec::new();
    for memory in &memories {
        let device = memory.device();
        if !events.iter().any(|(known, _)| *known == device) {
            events.push((device, backend.event(device)?));
        }
    }
    let mut memories = memories.into_iter();
    let storages = devices.iter().zip(parts).map(|(device, part)| {
        if device.is_cpu() {
            return Storage::host(part.clone());
        }
        let memory = memories.next().expect("one was allocated for each");
        let filled = events.iter().find(|(known, _)| *known == memory.device());
        let (_, filled) = filled.expect("one was made for each device");
        Storage::device(memory, Arc::clone(backend), Arc::clone(filled))
    });
    Ok(storages.collect())
}
