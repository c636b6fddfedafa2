//! The call of a rank: compared between ranks, and named in errors.

use std::fmt;

use crate::element::ElementType;
use crate::reduce_op::ReduceOp;

/// One call of an operation, as all ranks that take part must make it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Call {
    /// Which operation.
    pub operation: Operation,
    /// The type of the elements.
    pub element: ElementType,
    /// Number of elements that each rank passed; 0 where ranks may pass different numbers.
    pub elements: u64,
    /// Sequence number of this operation among the collective ones of the group, from 1; of
    /// [`Operation::Send`] and [`Operation::Receive`] among these of this rank.
    pub sequence: u64,
}

/// An operation and its arguments other than the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Operation {
    /// All ranks wait for one another.
    Barrier,
    /// All ranks wait for one another, and rank 0 says who did not come.
    MonitoredBarrier,
    /// All ranks get what one of them has.
    Broadcast {
        /// The rank that has it.
        root: u32,
    },
    /// Each rank gets its part of what one of them has.
    Scatter {
        /// The rank that has it.
        root: u32,
    },
    /// One rank gets what each has.
    Gather {
        /// The rank that gets it.
        root: u32,
    },
    /// All ranks get what each has.
    AllGather,
    /// All ranks get what each has, of different lengths.
    AllGatherUnequal,
    /// Each rank gets a part of what every one has.
    AllToAll,
    /// The same with parts of different lengths.
    AllToAllUnequal,
    /// One rank gets the combination of what each has.
    Reduce {
        /// The operator that combines two values.
        reduce: ReduceOp,
        /// The rank that gets it.
        root: u32,
    },
    /// All ranks get the combination of what each has.
    AllReduce {
        /// The operator that combines two values.
        reduce: ReduceOp,
    },
    /// Each rank gets a part of the combination of what each has.
    ReduceScatter {
        /// The operator that combines two values.
        reduce: ReduceOp,
    },
    /// This rank sends a message to another one.
    Send {
        /// The receiver.
        to: u32,
        /// Told apart by the receiver.
        tag: u32,
    },
    /// This rank receives a message.
    Receive {
        /// The sender; without one, any rank.
        from: Option<u32>,
        /// The tag of the message.
        tag: u32,
    },
}

impl fmt::Display for Call {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (element, elements) = (self.element, self.elements);
        let data = format!("{elements} x {element}");
        let text = match self.operation {
            Operation::Barrier => "barrier()".to_owned(),
            Operation::MonitoredBarrier => "monitored_barrier()".to_owned(),
            Operation::Broadcast { root } => format!("broadcast({data}, root {root})"),
            Operation::Scatter { root } => format!("scatter({data}, root {root})"),
            Operation::Gather { root } => format!("gather({data}, root {root})"),
            Operation::AllGather => format!("all_gather({data})"),
            Operation::AllGatherUnequal => format!("all_gather_unequal({element})"),
            Operation::AllToAll => format!("all_to_all({data})"),
            Operation::AllToAllUnequal => format!("all_to_all_unequal({element})"),
            Operation::Reduce { reduce, root } => format!("reduce({data}, {reduce}, root {root})"),
            Operation::AllReduce { reduce } => format!("all_reduce({data}, {reduce})"),
            Operation::ReduceScatter { reduce } => format!("reduce_scatter({data}, {reduce})"),
            Operation::Send { to, tag } => format!("send({data}, to rank {to}, tag {tag})"),
            Operation::Receive { from, tag } => {
                let from = from.map_or("any rank".to_owned(), |from| format!("rank {from}"));
                format!("receive({data}, from {from}, tag {tag})")
            }
        };
        write!(formatter, "{text} as operation {}", self.sequence)
    }
}
