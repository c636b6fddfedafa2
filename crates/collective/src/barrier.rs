//! `barrier`: nobody goes on before everybody has come.

use crate::call::Operation;
use crate::error::CollectiveError;
use crate::group::ProcessGroup;
use crate::schedule;

impl ProcessGroup {
    /// Waits until all ranks have called it, by dissemination: `log2(world size)` steps, rounded up.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        let schedule = schedule::dissemination(self.rank(), self.world_size());
        self.perform::<u8>(Operation::Barrier, &schedule, &mut [], None)
    }
}
