//! `barrier`, `monitored_barrier`: each rank waits for all ranks.

use std::time::Duration;

use crate::call::GroupOperation;
use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;
use crate::mesh::Mesh;
use crate::schedule::{self, Parts};

impl ProcessGroup {
    /// Blocks until all ranks have called this function.
    ///
    /// The ranks use a dissemination barrier, with `log2(world size)` steps, rounded up.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if a rank fails or calls another operation, or the timeout passes.
    pub fn barrier(&mut self) -> Result<()> {
        let schedule = schedule::dissemination(self.rank(), self.world_size());
        let parts = Parts::even(1, 0);
        self.perform::<u8>(GroupOperation::Barrier, &schedule, &mut [], &parts, None)
    }

    /// Blocks until all ranks have called this function, and names missing ranks.
    ///
    /// Rank 0 waits for all other ranks for up to `timeout`. After that, the error contains every
    /// missing rank, with the last operation from which that rank has sent data to rank 0. The
    /// text of the error names the first ten.
    ///
    /// The other ranks wait for rank 0 for the longer of `timeout` and the timeout of the group.
    ///
    /// # Errors
    ///
    /// If ranks are missing, rank 0 gets [`CollectiveError::NotReached`]. The ranks that wait get
    /// [`CollectiveError::Aborted`] with the first missing rank. If the connection to a rank is
    /// lost, rank 0 gets [`CollectiveError::Lost`].
    pub fn monitored_barrier(&mut self, timeout: Duration) -> Result<()> {
        let call = self.next_call::<u8>(GroupOperation::MonitoredBarrier, 0);
        let (rank, world_size) = (self.rank(), self.world_size());
        if rank != 0 {
            let limit = timeout.max(self.timeout());
            return self.attempt(call, limit, |mesh, _| {
                mesh.post(0, &[])?;
                mesh.receive(0, &mut [])
            });
        }
        self.attempt(call, timeout, |mesh, _| {
            await_all(mesh, world_size)?;
            for peer in 1..world_size {
                mesh.post(peer, &[])?;
            }
            mesh.flush(0)
        })
    }
}

/// Waits for all other ranks, up to one deadline.
fn await_all(mesh: &mut Mesh, world_size: u32) -> Result<()> {
    let mut missing = Vec::new();
    for peer in 1..world_size {
        // After the deadline, this only checks which ranks have arrived.
        match mesh.receive(peer, &mut []) {
            Ok(()) => {}
            Err(CollectiveError::Timeout { .. }) => missing.push((peer, mesh.last_call(peer))),
            Err(error) => return Err(error),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    let running = mesh.running();
    Err(CollectiveError::NotReached {
        call: running.call,
        missing,
        world_size,
        elapsed: running.started.elapsed(),
    })
}
