//! Copies between devices and host memory, through two pieces of pinned memory.
//!
//! While one piece is copied to or from the device, the host copies the other one.

use crate::driver::{CudaDriver, CudaStream, DriverResult, Pointer};
use crate::pinned::Stager;
use crate::state::{Rule, Shared};

/// Maximum number of pairs of pieces that are kept for later copies.
const MOST: usize = 4;

impl<D: CudaDriver> Shared<D> {
    fn stager(&self, device: u32) -> DriverResult<Stager> {
        let mut state = self.state.lock();
        let known = state.stagers.iter().position(|one| one.device == device);
        if let Some(known) = known {
            return Ok(state.stagers.swap_remove(known));
        }
        drop(state);
        Stager::new(&self.driver, device, self.limits.piece)
    }

    fn keep(&self, stager: Stager) {
        let mut state = self.state.lock();
        if state.stagers.len() < MOST {
            state.stagers.push(stager);
            return;
        }
        drop(state);
        stager.end(&self.driver);
    }

    /// Appends bytes of a device to `into`, after the work of the stream.
    ///
    /// The host waits.
    pub(crate) fn stage_out(
        &self,
        device: u32,
        (from, len): (Pointer, usize),
        stream: CudaStream,
        into: &mut Vec<u8>,
    ) -> DriverResult<()> {
        let (stager, size) = (self.stager(device)?, self.limits.piece);
        let mut copy = || -> DriverResult<()> {
            let mut before: Option<(usize, usize)> = None;
            let mut take = |(piece, part): (usize, usize)| -> DriverResult<()> {
                let (pinned, event) = stager.pieces[piece];
                self.driver.synchronize(device, event)?;
                self.driver.read(pinned, part, into);
                Ok(())
            };
            for (index, start) in (0..len).step_by(size).enumerate() {
                let (piece, part) = (index % 2, size.min(len - start));
                let (pinned, event) = stager.pieces[piece];
                // A copy to a device may still read the piece.
                if self.keeps(Rule::AfterPiece) {
                    self.driver.synchronize(device, event)?;
                }
                self.driver
                    .copy(device, pinned, from.plus(start), part, stream)?;
                self.driver.record(device, event, stream)?;
                if let Some(before) = before.replace((piece, part)) {
                    take(before)?;
                }
            }
            before.map_or(Ok(()), take)
        };
        let copied = copy();
        self.keep(stager);
        copied
    }

    /// Queues a copy of bytes to a device. The host waits only for earlier pieces.
    pub(crate) fn stage_in(
        &self,
        device: u32,
        to: Pointer,
        bytes: &[u8],
        stream: CudaStream,
    ) -> DriverResult<()> {
        let (stager, size) = (self.stager(device)?, self.limits.piece);
        let copy = || -> DriverResult<()> {
            for (index, part) in bytes.chunks(size).enumerate() {
                let (pinned, event) = stager.pieces[index % 2];
                if self.keeps(Rule::AfterPiece) {
                    self.driver.synchronize(device, event)?;
                }
                self.driver.write(pinned, part);
                let to = to.plus(index * size);
                self.driver.copy(device, to, pinned, part.len(), stream)?;
                self.driver.record(device, event, stream)?;
            }
            Ok(())
        };
        let copied = copy();
        self.keep(stager);
        copied
    }
}
