//! Ranks of the nodes of a round, in the order of the node descriptors.

use std::collections::BTreeMap;

use super::NodeDesc;

/// Assigns every participant its rank: 0, 1, 2, … in sorted order.
///
/// The node that completes a round assigns the ranks of all, so every implementation must agree.
pub fn assign(participants: &mut BTreeMap<NodeDesc, u32>) {
    for (rank, of_node) in (0..).zip(participants.values_mut()) {
        *of_node = rank;
    }
}

/// `true` if the ranks are as [`assign`] sets them.
///
/// The ranks have a gap after a participant other than the last one has left.
pub fn are_assigned(participants: &BTreeMap<NodeDesc, u32>) -> bool {
    (0..)
        .zip(participants.values())
        .all(|(rank, of_node)| rank == *of_node)
}

/// Returns the participants in the order of their ranks.
pub fn in_order(participants: &BTreeMap<NodeDesc, u32>) -> Vec<NodeDesc> {
    let mut nodes: Vec<_> = participants.iter().collect();
    nodes.sort_by_key(|(_, rank)| **rank);
    nodes.into_iter().map(|(node, _)| node.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addr: &str, pid: i64) -> NodeDesc {
        NodeDesc::new(addr, pid)
    }

    #[test]
    fn ranks_follow_the_text_of_addresses_then_the_numbers() {
        let mut participants: BTreeMap<_, _> = [
            (node("10.0.0.9", 1), 0),
            (node("10.0.0.10", 20), 0),
            (node("10.0.0.10", 3), 0),
        ]
        .into();
        assign(&mut participants);
        assert_eq!(
            in_order(&participants),
            [
                node("10.0.0.10", 3),
                node("10.0.0.10", 20),
                node("10.0.0.9", 1)
            ]
        );
        assert!(are_assigned(&participants));
    }

    #[test]
    fn a_gap_in_the_ranks_is_noticed() {
        let participants = [(node("a", 1), 0), (node("c", 1), 2)].into();
        assert!(!are_assigned(&participants));
    }
}
