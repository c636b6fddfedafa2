//! Which of the nodes of a job says what at its end, where the output of all comes to one place.

/// The part of a node in the words at the end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// All there is.
    Full,
    /// The first failure in one sentence.
    Sentence,
    /// Nothing: another node says it.
    Nothing,
}

/// The end of a job, as one node sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// All workers have ended well, or as they were told to.
    InOrder,
    /// This node has something of its own to say: its own error, or the first failure of the job.
    Here,
    /// The first failure of the job was on another node, which lives and says so.
    Elsewhere {
        /// Whether this node has said so already, when it heard of it.
        is_said: bool,
    },
    /// The first failure was the loss of another node, which says nothing any more.
    NodeLost,
}

/// The part of a node with this rank in the last round, if it was in one.
pub fn part(end: End, rank: Option<u32>) -> Part {
    match (end, rank) {
        (End::Here, _) | (End::InOrder | End::NodeLost, Some(0)) => Part::Full,
        (End::InOrder, _) | (End::Elsewhere { is_said: true }, _) => Part::Nothing,
        (End::NodeLost, _) | (End::Elsewhere { is_said: false }, _) => Part::Sentence,
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
        let (full, sentence, nothing) = (Part::Full, Part::Sentence, Part::Nothing);
        assert_eq!(parts([End::InOrder; 3]), [full, nothing, nothing]);
        assert_eq!(parts([End::NodeLost; 3]), [full, sentence, sentence]);
        let elsewhere = |is_said| End::Elsewhere { is_said };
        let ends = [elsewhere(false), End::Here, elsewhere(true)];
        assert_eq!(parts(ends), [sentence, full, nothing]);
    }
}
