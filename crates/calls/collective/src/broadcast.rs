//! `broadcast`, `scatter`: one rank sends values to all ranks.

use crate::call::GroupOperation;
use crate::element::Element;
use crate::error::Result;
use crate::exchange::Buffers;
use crate::group::ProcessGroup;
use crate::schedule::{self, Parts};

/// Size in bytes per rank below which the algorithm minimises steps.
///
/// Larger data on more than two ranks uses the algorithm that minimises bytes.
const SMALL: usize = 64 * 1024;

impl ProcessGroup {
    /// Copies the values from the rank `root` to all ranks.
    ///
    /// The values travel along a binomial tree. Large data on more than two ranks travels in parts
    /// around a ring. The number of values must be the same on all ranks. If a rank does not know
    /// this number, broadcast the number first. The call returns on a rank once that rank has the
    /// values and has passed them on. Other ranks may not have them yet. After an error, the values
    /// are unspecified.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`](crate::CollectiveError) if an argument is invalid, a rank fails or calls
    /// another operation, or the timeout passes.
    pub fn broadcast<T: Element>(&mut self, values: &mut [T], root: u32) -> Result<()> {
        self.check_rank("broadcast from", root)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let small = size_of_val(values) / SMALL < world_size as usize;
        let (schedule, parts) = if small || world_size == 2 {
            let schedule = schedule::binomial_tree(rank, world_size, root);
            (schedule, Parts::even(1, values.len()))
        } else {
            let schedule = schedule::scatter_and_ring(rank, world_size, root);
            (schedule, Parts::even(world_size, values.len()))
        };
        let operation = GroupOperation::Broadcast { root };
        self.perform(operation, &schedule, values, &parts, None)
    }

    /// Sends each rank its part of the values on the rank `root`.
    ///
    /// Rank `n` gets the `n`-th part of `all`; each part has `own.len()` elements.
    ///
    /// Only the root uses `all`, whose length must equal the total length of all parts. After an
    /// error, the values are unspecified.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`](crate::CollectiveError) if an argument is invalid, a rank fails or calls
    /// another operation, or the timeout passes.
    pub fn scatter<T: Element>(&mut self, all: &[T], own: &mut [T], root: u32) -> Result<()> {
        self.check_rank("scatter from", root)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = GroupOperation::Scatter { root };
        let parts = Parts::even(world_size, self.of_all(own.len()));
        let schedule = schedule::direct_scatter(rank, world_size, root);
        let mine = Parts::only(rank, world_size, own.len());
        if rank == root {
            self.check_length("scatter: `all`", all.len(), self.of_all(own.len()))?;
            own.copy_from_slice(&all[parts.range(rank)]);
        }
        let elements = own.len() as u64;
        let source = if rank == root { all } else { &[] };
        let buffers = Buffers::Between((source, &parts), (own, &mine));
        self.run_schedule(operation, elements, &schedule, buffers, None)
    }
}
