//! The choice of the node that prints the end of a job.
//!
//! All nodes may print to the same output, so one of them prints everything. Nodes with another
//! error print that error too. Other nodes print one sentence or nothing.

/// The part of the final message that one node prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownPart {
    /// The whole message.
    Full,
    /// The first failure in one sentence.
    Sentence,
    /// Nothing: another node prints the message, or this node has printed it.
    Nothing,
}

/// The end of a job, as one node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All workers have succeeded, or have exited as requested.
    InOrder,
    /// This node has the error itself, or the first failure of the job.
    Here,
    /// The first failure was on another node, which is alive and reports it.
    Elsewhere {
        /// `true` if this node printed that failure when it received the message.
        is_said: bool,
    },
    /// The first failure was the loss of another node, which prints nothing.
    NodeLost,
}

/// Returns the part that one node prints.
/// `rank` is its rank in the last round, if it was in one.
pub fn part(end: End, rank: Option<u32>) -> ShownPart {
    match (end, rank) {
        (End::Here, _) | (End::InOrder | End::NodeLost, Some(0)) => ShownPart::Full,
        (End::InOrder, _) | (End::Elsewhere { is_said: true }, _) => ShownPart::Nothing,
        (End::NodeLost, _) | (End::Elsewhere { is_said: false }, _) => ShownPart::Sentence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_says_all() {
        let parts = |ends: [End; 3]| {
            let ranks = [Some(0), Some(1), None];
            let each = ends.into_iter().zip(ranks);
            each.map(|(end, rank)| part(end, rank)).collect::<Vec<_>>()
        };
        let (full, sentence, nothing) = (ShownPart::Full, ShownPart::Sentence, ShownPart::Nothing);
        assert_eq!(parts([End::InOrder; 3]), [full, nothing, nothing]);
        assert_eq!(parts([End::NodeLost; 3]), [full, sentence, sentence]);
        let elsewhere = |is_said| End::Elsewhere { is_said };
        let ends = [elsewhere(false), End::Here, elsewhere(true)];
        assert_eq!(parts(ends), [sentence, full, nothing]);
    }
}
