//! `all_reduce`, `reduce_scatter`, `reduce`: combine the values on all ranks.

use std::ops::Range;

use crate::call::GroupOperation;
use crate::element::Element;
use crate::error::{CollectiveError, Result};
use crate::group::ProcessGroup;
use crate::reduce_op::ReduceOp;
use crate::schedule::{self, Parts, Schedule};
use crate::shared_reduction::Reduction;

/// Maximum size in bytes of small data.
///
/// For small data, an all-reduce uses the algorithm that minimises steps, and no reduction uses
/// shared buffers.
const SMALL: usize = 16 * 1024;

impl ProcessGroup {
    /// Combines the values on all ranks element-wise; all ranks get the result.
    ///
    /// Up to 16 KiB, the ranks use recursive doubling (few steps). For larger data, each rank
    /// combines one part. In groups of at most 16 ranks on one host, each rank gets the values
    /// directly from the others, through shared memory if possible. In other groups, the ranks pass
    /// the parts around a ring (few bytes). The order of combination depends only on ranks, sizes
    /// and hosts. The result is therefore bitwise identical on all ranks, and in every run with the
    /// same values, ranks and hosts. After an error, the values are unspecified.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn all_reduce<T: Element>(&mut self, values: &mut [T], reduce: ReduceOp) -> Result<()> {
        let reduce = prepare("all_reduce", values, reduce)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = GroupOperation::AllReduce { reduce };
        if size_of_val(values) <= SMALL {
            let schedule = schedule::recursive_doubling(rank, world_size);
            let whole = Parts::even(1, values.len());
            self.perform(operation, &schedule, values, &whole, Some(reduce))?;
        } else {
            let schedule = || schedule::ring_reduce(rank, world_size);
            self.reduce_parts(operation, values, reduce, &|_| true, schedule)?;
        }
        average(values, reduce, world_size);
        Ok(())
    }

    /// Combines the values on all ranks; each rank gets one part of the result.
    ///
    /// The result replaces that part of `values`, and its range is returned. Rank `n` gets the
    /// `n`-th of `world size` parts. If the length is not divisible, the first parts are one
    /// element longer. The other elements are unspecified on return, and all elements are
    /// unspecified after an error.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        values: &mut [T],
        reduce: ReduceOp,
    ) -> Result<Range<usize>> {
        let reduce = prepare("reduce_scatter", values, reduce)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = GroupOperation::ReduceScatter { reduce };
        let schedule = || schedule::ring_reduce_scatter(rank, world_size);
        self.reduce_parts(operation, values, reduce, &|_| false, schedule)?;
        let own = Parts::even(world_size, values.len()).range(rank);
        average(&mut values[own.clone()], reduce, world_size);
        Ok(own)
    }

    /// Combines the values on all ranks; the rank `root` gets the result.
    ///
    /// On the other ranks, the values are unspecified on return. After an error, they are
    /// unspecified on all ranks.
    ///
    /// # Errors
    ///
    /// [`CollectiveError`] if an argument is invalid, a rank fails or calls another operation, or
    /// the timeout passes.
    pub fn reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduce: ReduceOp,
        root: u32,
    ) -> Result<()> {
        self.check_rank("reduce to", root)?;
        let reduce = prepare("reduce", values, reduce)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = GroupOperation::Reduce { reduce, root };
        let schedule = || schedule::reduce_to(rank, world_size, root);
        self.reduce_parts(operation, values, reduce, &|rank| rank == root, schedule)?;
        if rank == root {
            average(values, reduce, world_size);
        }
        Ok(())
    }

    /// Reduces one part at each rank, on shared buffers or by a schedule.
    ///
    /// Shared buffers are used for more than 16 KiB if the group
    /// [has them](ProcessGroup::has_shared_buffers).
    ///
    /// Ranks for which `takes_all` is true get all parts.
    fn reduce_parts<T: Element>(
        &mut self,
        operation: GroupOperation,
        values: &mut [T],
        reduce: ReduceOp,
        takes_all: &dyn Fn(u32) -> bool,
        schedule: impl FnOnce() -> Schedule,
    ) -> Result<()> {
        let parts = Parts::even(self.world_size(), values.len());
        if size_of_val(values) <= SMALL || !self.has_shared_buffers() {
            return self.perform(operation, &schedule(), values, &parts, Some(reduce));
        }
        let call = self.next_call::<T>(operation, values.len() as u64);
        let reduction = Reduction {
            values,
            parts: &parts,
            reduce,
            takes_all,
        };
        self.attempt(call, self.timeout(), |mesh, scratch| {
            reduction.run(mesh, scratch)
        })
    }
}

/// Checks the operator, and applies the factor of a premultiplied sum.
///
/// Returns the operator that the ranks apply together.
fn prepare<T: Element>(what: &str, values: &mut [T], op: ReduceOp) -> Result<ReduceOp> {
    if !T::TYPE.allows(op) {
        return Err(CollectiveError::Argument(format!(
            "{what} by {op}: {} has no such operator; see ReduceOp",
            T::TYPE
        )));
    }
    let ReduceOp::PremulSum(factor) = op else {
        return Ok(op);
    };
    for value in values {
        *value = value.scale(factor);
    }
    Ok(ReduceOp::Sum)
}

fn average<T: Element>(values: &mut [T], reduce: ReduceOp, world_size: u32) {
    if reduce == ReduceOp::Average {
        for value in values {
            *value = value.divide(world_size);
        }
    }
}
