//! Pinned host memory, in pairs of pieces.

use crate::driver::{CudaDriver, CudaEvent, DriverResult, Pointer};

/// Pair of pinned pieces, each with the event behind its last copy.
#[derive(Debug)]
pub(crate) struct Stager {
    pub(crate) device: u32,
    pub(crate) pieces: [(Pointer, CudaEvent); 2],
}

impl Stager {
    pub(crate) fn new(driver: &impl CudaDriver, device: u32, size: usize) -> DriverResult<Self> {
        let piece = || -> DriverResult<(Pointer, CudaEvent)> {
            let event = driver.event(device, false)?;
            Ok((driver.pin(device, size)?, event))
        };
        let pieces = [piece()?, piece()?];
        Ok(Self { device, pieces })
    }

    /// Frees the pieces after the last copies.
    pub(crate) fn end(self, driver: &impl CudaDriver) {
        for (pointer, event) in self.pieces {
            let _ = driver.synchronize(self.device, event);
            driver.destroy(self.device, event);
            driver.unpin(self.device, pointer);
        }
    }
}
