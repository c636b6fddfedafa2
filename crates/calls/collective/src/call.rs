//! Calls of operations, which ranks compare and errors name.

use std::fmt;

use crate::element::ElementType;
use crate::reduce_op::ReduceOp;

/// Call of an operation.
/// All ranks must make the same call of a collective operation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// Operation and its arguments.
    pub operation: GroupOperation,
    /// Type of the elements.
    pub element: ElementType,
    /// Number of elements on each rank; 0 if ranks may pass different numbers.
    ///
    /// For [`GroupOperation::AllGather`], it is the number of elements of all ranks together.
    pub elements: u64,
    /// Sequence number, from 1.
    ///
    /// For a collective operation, it counts the collective operations in the group. For
    /// [`GroupOperation::Send`] and [`GroupOperation::Receive`], it counts the sends and receives
    /// of this rank.
    pub sequence: u64,
}

/// Operation and its arguments other than the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum GroupOperation {
    /// All ranks wait for each other.
    Barrier,
    /// All ranks wait for each other, and rank 0 names the missing ranks.
    MonitoredBarrier,
    /// All ranks get the values from one rank.
    Broadcast {
        /// Rank that has the values.
        root: u32,
    },
    /// Each rank gets its part of the values on one rank.
    Scatter {
        /// Rank that has the values.
        root: u32,
    },
    /// One rank gets the values from all ranks.
    Gather {
        /// Rank that gets the values.
        root: u32,
    },
    /// All ranks get the values from all ranks.
    AllGather,
    /// All ranks get the values from all ranks, with different lengths.
    AllGatherUnequal,
    /// Each rank gets one part of the values on every rank.
    AllToAll,
    /// Each rank gets one part of the values on every rank, with different lengths.
    AllToAllUnequal,
    /// One rank gets the combination of all ranks' values.
    Reduce {
        /// Operator that combines two values.
        reduce: ReduceOp,
        /// Rank that gets the result.
        root: u32,
    },
    /// All ranks get the combination of all ranks' values.
    AllReduce {
        /// Operator that combines two values.
        reduce: ReduceOp,
    },
    /// Each rank gets a part of the combination of all ranks' values.
    ReduceScatter {
        /// Operator that combines two values.
        reduce: ReduceOp,
    },
    /// This rank sends a message to another rank.
    Send {
        /// Rank that receives the message.
        to: u32,
        /// Tag that a receive must match.
        tag: u32,
    },
    /// This rank receives a message.
    Receive {
        /// Sender; `None` for any rank.
        from: Option<u32>,
        /// Tag of the message.
        tag: u32,
    },
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (element, elements) = (self.element, self.elements);
        let data = format!("{elements} x {element}");
        let text = match self.operation {
            GroupOperation::Barrier => "barrier()".to_owned(),
            GroupOperation::MonitoredBarrier => "monitored_barrier()".to_owned(),
            GroupOperation::Broadcast { root } => format!("broadcast({data}, root {root})"),
            GroupOperation::Scatter { root } => format!("scatter({data}, root {root})"),
            GroupOperation::Gather { root } => format!("gather({data}, root {root})"),
            GroupOperation::AllGather => format!("all_gather({data})"),
            GroupOperation::AllGatherUnequal => format!("all_gather_unequal({element})"),
            GroupOperation::AllToAll => format!("all_to_all({data})"),
            GroupOperation::AllToAllUnequal => format!("all_to_all_unequal({element})"),
            GroupOperation::Reduce { reduce, root } => {
                format!("reduce({data}, {reduce}, root {root})")
            }
            GroupOperation::AllReduce { reduce } => format!("all_reduce({data}, {reduce})"),
            GroupOperation::ReduceScatter { reduce } => format!("reduce_scatter({data}, {reduce})"),
            GroupOperation::Send { to, tag } => format!("send({data}, to rank {to}, tag {tag})"),
            GroupOperation::Receive { from, tag } => {
                let from = from.map_or("any rank".to_owned(), |from| format!("rank {from}"));
                format!("receive({data}, from {from}, tag {tag})")
            }
        };
        write!(formatter, "{text} as operation {}", self.sequence)
    }
}
