//! `all_reduce`: every rank gets the combination of what each of them has.

use std::fmt;

use crate::call::Operation;
use crate::element::Element;
use crate::error::CollectiveError;
use crate::group::ProcessGroup;
use crate::schedule::{self, Schedule};

/// How two values become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum. Integers wrap around.
    Sum,
    /// The sum of all, divided by the world size. Integers are rounded towards zero.
    Average,
    /// The smaller one; not-a-number if either is.
    Min,
    /// The greater one; not-a-number if either is.
    Max,
}

impl fmt::Display for Reduce {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Sum => "sum",
            Self::Average => "average",
            Self::Min => "min",
            Self::Max => "max",
        })
    }
}

/// Up to this many bytes the number of steps counts and not the number of bytes.
const SMALL: usize = 16 * 1024;

impl ProcessGroup {
    /// Combines the values of all ranks, element by element; all get the result.
    ///
    /// Up to 16 KiB by recursive doubling (few steps), above that around a ring (few bytes). The
    /// order of combination depends on ranks and sizes only, so that the result is the same to the
    /// last bit on all ranks and in every run. After an error the values are unspecified.
    pub fn all_reduce<T: Element>(
        &mut self,
        values: &mut [T],
        reduce: Reduce,
    ) -> Result<(), CollectiveError> {
        let schedule = choose(self.rank(), self.world_size(), size_of_val(values));
        self.perform(
            Operation::AllReduce { reduce },
            &schedule,
            values,
            Some(reduce),
        )?;
        if reduce == Reduce::Average {
            let world_size = self.world_size();
            for value in values {
                *value = value.divide(world_size);
            }
        }
        Ok(())
    }
}

fn choose(rank: u32, world_size: u32, bytes: usize) -> Schedule {
    if bytes <= SMALL {
        schedule::recursive_doubling(rank, world_size)
    } else {
        schedule::ring(rank, world_size)
    }
}
