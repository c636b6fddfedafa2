//! The memory that tensors are views of.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_rpc_proto::device::Device;

use crate::RpcError;
use crate::device::{DeviceBackend, DeviceMemory, Event};

/// Memory of the host or of a device, shared by the tensors that are views of it, and never written
/// again. Clones are the same storage.
#[derive(Clone)]
pub struct Storage(Arc<Memory>);

enum Memory {
    Host(Bytes),
    /// Of a device on which there is nothing.
    Nothing(Device),
    Device {
        memory: Arc<dyn DeviceMemory>,
        backend: Arc<dyn DeviceBackend>,
        /// When everything that was copied into it has arrived.
        filled: Arc<dyn Event>,
    },
}

impl Storage {
    /// Memory of the host.
    pub fn host(bytes: Bytes) -> Self {
        Self(Arc::new(Memory::Host(bytes)))
    }

    /// Memory of a device that others have filled; it is complete when `filled` is reached.
    pub fn device(
        memory: Arc<dyn DeviceMemory>,
        backend: Arc<dyn DeviceBackend>,
        filled: Arc<dyn Event>,
    ) -> Self {
        Self(Arc::new(Memory::Device {
            memory,
            backend,
            filled,
        }))
    }

    /// No memory: for tensors without elements.
    pub(crate) fn nothing(device: Device) -> Self {
        Self(Arc::new(Memory::Nothing(device)))
    }

    /// Where it is.
    pub fn location(&self) -> Device {
        match &*self.0 {
            Memory::Host(_) => Device::CPU,
            Memory::Nothing(device) => *device,
            Memory::Device { memory, .. } => memory.device(),
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        match &*self.0 {
            Memory::Host(bytes) => bytes.len(),
            Memory::Nothing(_) => 0,
            Memory::Device { memory, .. } => memory.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the other is the same storage, not only one with equal bytes.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The bytes, if they are in the memory of the host.
    pub fn host_bytes(&self) -> Option<&Bytes> {
        match &*self.0 {
            Memory::Host(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The memory of a device, once everything that was copied into it has arrived.
    ///
    /// # Errors
    ///
    /// What went wrong with that.
    pub fn device_memory(&self) -> Result<Option<&Arc<dyn DeviceMemory>>, RpcError> {
        match &*self.0 {
            Memory::Device { memory, filled, .. } => {
                filled.wait()?;
                Ok(Some(memory))
            }
            _ => Ok(None),
        }
    }

    /// Some bytes of it, in the memory of the host: shared if they are there, else copied out.
    ///
    /// # Errors
    ///
    /// What the device says.
    ///
    /// # Panics
    ///
    /// If it has fewer.
    pub fn bytes(&self, range: Range<usize>) -> Result<Bytes, RpcError> {
        match &*self.0 {
            Memory::Host(bytes) => Ok(bytes.slice(range)),
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

    /// What tells storages apart.
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

/// Puts the parts of a message on their devices, each device's parts at once. One storage for each part.
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
    // One event per device, after everything was given to it.
    let mut events: Vec<(Device, Arc<dyn Event>)> = Vec::new();
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
