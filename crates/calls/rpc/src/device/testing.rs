//! Simulated accelerators, for testing code that uses devices.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_lock::Mutex;
use rdzv_rpc_proto::device::Device;

use super::cpu::no_such_device;
use super::{DeviceBackend, DeviceEvent, DeviceMemory};
use crate::RpcError;

/// Simulated accelerators in host memory, named `cuda:0`, `cuda:1` and so on.
///
/// They delay work like a real device: copied bytes arrive only when the caller waits for them.
/// Until then the memory is filled with `0xAA`.
#[derive(Debug)]
pub struct FakeDevices {
    count: u32,
    queues: Vec<Queue>,
}

/// Copies that a device has not done yet.
type Queue = Arc<Mutex<Vec<Copy>>>;

#[derive(Debug)]
struct Copy {
    from: Bytes,
    to: Arc<FakeMemory>,
}

#[derive(Debug)]
struct FakeMemory {
    device: Device,
    bytes: Mutex<Vec<u8>>,
    len: usize,
}

#[derive(Debug)]
struct FakeEvent {
    queue: Queue,
}

impl FakeDevices {
    /// Creates this number of accelerators.
    pub fn new(count: u32) -> Self {
        let queues = (0..count).map(|_| Queue::default()).collect();
        Self { count, queues }
    }

    /// Creates this number of accelerators, ready to pass to an agent.
    pub fn shared(count: u32) -> Arc<dyn DeviceBackend> {
        Arc::new(Self::new(count))
    }

    /// Returns the current content of memory on these devices, without waiting.
    ///
    /// `None` for memory of another backend.
    pub fn contents(memory: &Arc<dyn DeviceMemory>) -> Option<Vec<u8>> {
        let memory = ours(memory).ok()?;
        Some(memory.bytes.lock().clone())
    }

    fn queue(&self, device: Device) -> Result<&Queue, RpcError> {
        let index = device.index().filter(|_| device.is_among(self.count));
        let queue = index.and_then(|index| self.queues.get(index as usize));
        queue.ok_or_else(|| no_such_device(device, self.count))
    }
}

impl DeviceMemory for FakeMemory {
    fn device(&self) -> Device {
        self.device
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl DeviceEvent for FakeEvent {
    fn wait(&self) -> Result<(), RpcError> {
        for copy in std::mem::take(&mut *self.queue.lock()) {
            copy.to.bytes.lock()[..copy.from.len()].copy_from_slice(&copy.from);
        }
        Ok(())
    }
}

impl DeviceBackend for FakeDevices {
    fn count(&self) -> u32 {
        self.count
    }

    fn alloc(&self, device: Device, len: usize) -> Result<Arc<dyn DeviceMemory>, RpcError> {
        self.queue(device)?;
        let bytes = Mutex::new(vec![0xAA; len]);
        Ok(Arc::new(FakeMemory { device, bytes, len }))
    }

    fn copy_in(&self, from: Bytes, to: &Arc<dyn DeviceMemory>) -> Result<(), RpcError> {
        let to = ours(to)?;
        self.queue(to.device)?.lock().push(Copy { from, to });
        Ok(())
    }

    fn copy_out(
        &self,
        from: &Arc<dyn DeviceMemory>,
        range: Range<usize>,
    ) -> Result<Bytes, RpcError> {
        let from = ours(from)?;
        self.event(from.device)?.wait()?;
        let bytes = from.bytes.lock();
        Ok(Bytes::copy_from_slice(&bytes[range]))
    }

    fn event(&self, device: Device) -> Result<Arc<dyn DeviceEvent>, RpcError> {
        let queue = Arc::clone(self.queue(device)?);
        Ok(Arc::new(FakeEvent { queue }))
    }
}

fn ours(memory: &Arc<dyn DeviceMemory>) -> Result<Arc<FakeMemory>, RpcError> {
    let memory: Arc<dyn Any + Send + Sync> = Arc::clone(memory) as _;
    memory.downcast().map_err(|_| {
        let message = "this memory belongs to another backend";
        RpcError::invalid(message)
    })
}
