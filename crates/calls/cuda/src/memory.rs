//! Device memory of a tensor: received, or of another library.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use rdzv_lock::Mutex;
use rdzv_rpc::device::{Device, DeviceMemory};

use crate::driver::{CudaDriver, CudaStream, DriverResult, Pointer};
use crate::library::Library;
use crate::state::{Mark, Rule, Shared};

/// Memory on a device, with the point in a stream at which it is complete.
pub struct CudaMemory<D: CudaDriver = Library> {
    pub(crate) shared: Arc<Shared<D>>,
    pub(crate) device: u32,
    pub(crate) pointer: Pointer,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
    /// Point after the last write; `None` if the content needs no wait.
    pub(crate) ready: Mutex<Option<Arc<Mark<D>>>>,
}

/// Owner of device memory.
pub(crate) enum Owner {
    /// This crate, which frees it after the work of the streams that got it.
    Received {
        stream: CudaStream,
        readers: Mutex<Vec<CudaStream>>,
    },
    /// Another library, which frees it when the value is dropped.
    Foreign(#[expect(dead_code, reason = "keeps the memory")] Box<dyn Any + Send + Sync>),
}

impl<D: CudaDriver> CudaMemory<D> {
    /// Returns the address on the device.
    pub fn pointer(&self) -> Pointer {
        self.pointer
    }

    /// Makes later work of a stream of the application wait for the content.
    ///
    /// Received memory is freed at its drop, after the work that the stream has at that time. The
    /// host does not wait.
    ///
    /// # Errors
    ///
    /// Returns the failure of the driver.
    pub fn hand_to(&self, stream: CudaStream) -> DriverResult<()> {
        let ready = self.ready.lock().clone();
        if let Some(ready) = ready
            && self.shared.keeps(Rule::BeforeConsumer)
        {
            self.shared.follow(self.device, stream, &ready)?;
        }
        if let Owner::Received { readers, .. } = &self.owner {
            let mut readers = readers.lock();
            if !readers.contains(&stream) {
                readers.push(stream);
            }
        }
        Ok(())
    }

    /// Makes later work of a copy stream wait for the content.
    pub(crate) fn follow(&self, stream: CudaStream) -> DriverResult<()> {
        let ready = self.ready.lock().clone();
        match ready {
            Some(ready) => self.shared.follow(self.device, stream, &ready),
            None => Ok(()),
        }
    }
}

impl<D: CudaDriver> Drop for CudaMemory<D> {
    fn drop(&mut self) {
        if let Owner::Received { stream, readers } = &mut self.owner {
            let ready = self.ready.get_mut().take();
            let memory = (self.device, self.pointer, self.len);
            self.shared
                .free(memory, *stream, ready.as_ref(), readers.get_mut());
        }
    }
}

impl<D: CudaDriver> DeviceMemory for CudaMemory<D> {
    fn device(&self) -> Device {
        Device::accelerator(self.device)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn address(&self) -> Option<u64> {
        Some(self.pointer.0)
    }
}

impl<D: CudaDriver> fmt::Debug for CudaMemory<D> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} bytes on cuda:{}", self.len, self.device)
    }
}
