//! `broadcast`: every rank gets what one of them has.

use crate::call::Operation;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::group::ProcessGroup;
use crate::schedule;

impl ProcessGroup {
    /// Copies the values of the rank `root` to all ranks, along a binomial tree.
    ///
    /// The number of values must be the same on all ranks; where it is not known, broadcast it
    /// first. Returns on a rank as soon as that rank has the values and has passed them on, which
    /// may be before others have them. After an error the values are unspecified.
    pub fn broadcast<T: Element>(
        &mut self,
        values: &mut [T],
        root: u32,
    ) -> Result<(), CollectiveError> {
        let (rank, world_size) = (self.rank(), self.world_size());
        if root >= world_size {
            return Err(CollectiveError::Argument(format!(
                "broadcast from rank {root}: the group has ranks 0 to {}",
                world_size - 1
            )));
        }
        let schedule = schedule::binomial_tree(rank, world_size, root);
        self.perform(Operation::Broadcast { root }, &schedule, values, None)
    }
}
