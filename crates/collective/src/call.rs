//! What a rank has called: compared between ranks, and named in errors.

use std::fmt;

use crate::element::ElementType;
use crate::reduce::Reduce;

/// One call of a collective operation, as all ranks must make it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// Which operation.
    pub operation: Operation,
    /// The type of the elements.
    pub element: ElementType,
    /// How many elements the caller passed.
    pub elements: u64,
    /// The how-manieth operation of the group this is, from 1.
    pub sequence: u64,
}

/// A collective operation and its arguments other than the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// All ranks wait for one another.
    Barrier,
    /// All ranks get what one of them has.
    Broadcast {
        /// The rank that has it.
        root: u32,
    },
    /// All ranks get the combination of what each has.
    AllReduce {
        /// How two values become one.
        reduce: Reduce,
    },
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            element,
            elements,
            sequence,
            ..
        } = self;
        match self.operation {
            Operation::Barrier => write!(formatter, "barrier()")?,
            Operation::Broadcast { root } => {
                write!(formatter, "broadcast({elements} x {element}, root {root})")?;
            }
            Operation::AllReduce { reduce } => {
                write!(formatter, "all_reduce({elements} x {element}, {reduce})")?;
            }
        }
        write!(formatter, " as operation {sequence}")
    }
}
