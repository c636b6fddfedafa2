//! `all_reduce`, `reduce_scatter`, `reduce`: what all ranks have becomes one, element by element.

use std::fmt;
use std::ops::Range;

use crate::boards::{Reduction, Takers};
use crate::call::Operation;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::group::ProcessGroup;
use crate::schedule::{self, Parts, Schedule};

/// How two values become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum. Integers wrap around.
    Sum,
    /// The sum of all, divided by the world size. Integers are rounded towards zero.
    Average,
    /// Their product. Integers wrap around.
    Product,
    /// The smaller one; not-a-number if either is.
    Min,
    /// The greater one; not-a-number if either is.
    Max,
    /// Bits that both have. Integers only.
    BitAnd,
    /// Bits that either has. Integers only.
    BitOr,
    /// Bits that one of them has. Integers only.
    BitXor,
}

impl Reduce {
    /// All of them, in the order of their codes on the wire, which begin with 1.
    pub(crate) const ALL: [Self; 8] = [
        Self::Sum,
        Self::Average,
        Self::Min,
        Self::Max,
        Self::Product,
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
    ];

    fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }
}

impl fmt::Display for Reduce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sum => "sum",
            Self::Average => "average",
            Self::Product => "product",
            Self::Min => "min",
            Self::Max => "max",
            Self::BitAnd => "bitwise and",
            Self::BitOr => "bitwise or",
            Self::BitXor => "bitwise exclusive or",
        })
    }
}

/// Up to this many bytes the number of steps counts and not the number of bytes.
const SMALL: usize = 16 * 1024;

impl ProcessGroup {
    /// Combines the values of all ranks, element by element; all get the result.
    ///
    /// Up to 16 KiB by recursive doubling (few steps). Above that each rank combines one part: up to 16
    /// ranks of one host read from one another's memory, others pass the parts around a ring (few
    /// bytes). The order of combination depends on ranks, sizes and hosts only, so that the result is the
    /// same to the last bit on all ranks and in every run. After an error the values are unspecified.
    pub fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        check_reduce::<T>("all_reduce", reduce)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = Operation::AllReduce { reduce };
        if size_of_val(values) <= SMALL {
            let schedule = schedule::recursive_doubling(rank, world_size);
            let whole = Parts::even(1, values.len());
            self.perform(operation, &schedule, values, &whole, Some(reduce))?;
        } else {
            let schedule = || schedule::ring_reduce(rank, world_size);
            self.reduce_parts(operation, values, reduce, Takers::Everybody, schedule)?;
        }
        average(values, reduce, world_size);
        Ok(())
    }

    /// Combines the values of all ranks; each gets one part of the result, in its place in `values`.
    ///
    /// Returns which elements that are: rank `n` has the `n`-th of `world size` parts, of which the
    /// first are one element longer where the length does not divide. The other elements are
    /// unspecified afterwards, and after an error all are.
    pub fn reduce_scatter<T: Element>(
        &mut self,
        values: &mut [T],
        reduce: Reduce,
    ) -> Result<Range<usize>, CollectiveError> {
        check_reduce::<T>("reduce_scatter", reduce)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = Operation::ReduceScatter { reduce };
        let schedule = || schedule::ring_reduce_scatter(rank, world_size);
        self.reduce_parts(operation, values, reduce, Takers::Nobody, schedule)?;
        let own = Parts::even(world_size, values.len()).range(rank);
        average(&mut values[own.clone()], reduce, world_size);
        Ok(own)
    }

    /// Combines the values of all ranks; the rank `root` gets the result.
    ///
    /// On the other ranks the values are unspecified afterwards, and after an error on all.
    pub fn reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduce: Reduce,
        root: u32,
    ) -> Result<(), CollectiveError> {
        check_reduce::<T>("reduce", reduce)?;
        self.check_rank("reduce to", root)?;
        let (rank, world_size) = (self.rank(), self.world_size());
        let operation = Operation::Reduce { reduce, root };
        let schedule = || schedule::reduce_to(rank, world_size, root);
        self.reduce_parts(operation, values, reduce, Takers::Only(root), schedule)?;
        if rank == root {
            average(values, reduce, world_size);
        }
        Ok(())
    }

    /// Reduces one part at each rank: on boards where they are the faster way, by a schedule otherwise.
    fn reduce_parts<T: Element>(
        &mut self,
        operation: Operation,
        values: &mut [T],
        reduce: Reduce,
        takers: Takers,
        schedule: impl FnOnce() -> Schedule,
    ) -> Result<(), CollectiveError> {
        let parts = Parts::even(self.world_size(), values.len());
        if size_of_val(values) <= SMALL || !self.has_boards() {
            return self.perform(operation, &schedule(), values, &parts, Some(reduce));
        }
        let call = self.next_call::<T>(operation, values.len() as u64);
        let reduction = Reduction {
            values,
            parts: &parts,
            reduce,
            takers,
        };
        self.attempt(call, self.timeout(), |mesh, running, scratch| {
            reduction.run(mesh, running, scratch)
        })
    }
}

fn check_reduce<T: Element>(what: &str, reduce: Reduce) -> Result<(), CollectiveError> {
    if T::BITWISE || !reduce.is_bitwise() {
        return Ok(());
    }
    Err(CollectiveError::Argument(format!(
        "{what} by {reduce}: {} has no bits to combine, only integers have",
        T::TYPE
    )))
}

fn average<T: Element>(values: &mut [T], reduce: Reduce, world_size: u32) {
    if reduce == Reduce::Average {
        for value in values {
            *value = value.divide(world_size);
        }
    }
}
