//! Ranks of the nodes of a round.

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

/// A node's rank in a round, and its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seat {
    /// The rank.
    pub rank: u32,
    /// Instance of the agent; 0 if it is unknown.
    pub instance: u64,
    /// Role of the agent's workers.
    pub role: String,
    /// Number of the agent's workers; 0 if it is unknown.
    pub local_world_size: u32,
}

/// Assigns ranks so that the nodes of the last round keep theirs.
///
/// `seats` describes all participants; `last` describes the last round, which had `size` nodes. A
/// vacated rank goes to a new node with the same role and number of workers, if there is one.
///
/// The size of the round or the number of workers of a remaining node may have changed. The nodes
/// of the last round then come first, in the order of their old ranks.
pub fn keep(
    participants: &mut BTreeMap<NodeDesc, u32>,
    seats: &BTreeMap<NodeDesc, Seat>,
    (last, size): (&BTreeMap<NodeDesc, Seat>, u32),
) {
    let mut taken: BTreeMap<u32, &NodeDesc> = BTreeMap::new();
    let (mut new, mut is_resized) = (Vec::new(), seats.len() != size as usize);
    for (node, seat) in seats {
        let old = last.get(node).filter(|old| old.rank < size);
        match old.filter(|old| !taken.contains_key(&old.rank)) {
            Some(old) => {
                let is_known = old.local_world_size > 0;
                is_resized |= is_known && old.local_world_size != seat.local_world_size;
                taken.insert(old.rank, node);
            }
            None => new.push(node),
        }
    }
    if is_resized {
        let order: Vec<_> = taken.into_values().chain(new).collect();
        taken = (0..).zip(order).collect();
    } else {
        let workers = |seat: &Seat| (seat.role.clone(), seat.local_world_size);
        let left = last.values().map(|seat| (seat.rank, workers(seat)));
        for (rank, left) in left.collect::<BTreeMap<_, _>>() {
            let mut like = new.iter();
            if !taken.contains_key(&rank)
                && rank < size
                && let Some(at) = like.position(|node| workers(&seats[*node]) == left)
            {
                taken.insert(rank, new.remove(at));
            }
        }
        let free: Vec<u32> = (0..size).filter(|rank| !taken.contains_key(rank)).collect();
        taken.extend(free.into_iter().zip(new));
    }
    for (rank, node) in taken {
        participants.insert(node.clone(), rank);
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
