//! The nodes that are expected in the round after a change.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::time::Mono;

use super::{NodeDesc, RendezvousState};

/// Time for which a node that is in no list is still expected.
///
/// Agents of torchrun leave a round and enter the next one in two writes. Between these writes they
/// are in no list of the state.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(1);

/// Nodes that this agent saw in the lists of the last complete round.
///
/// When nodes leave that round because of a change, each of them joins again immediately or never.
/// Until it has joined, it is in the wait list, or in no list for a moment. So the next round is
/// complete when the last of these nodes has joined, and needs no last call. A new node that no
/// list contained finds a complete round and waits for the next one, as it would after a last call.
/// An agent that did not see the previous round expects no nodes, and waits for the end of the last
/// call.
#[derive(Debug, Default)]
pub struct Expected {
    /// The last complete round that this agent saw.
    round: Option<u64>,
    /// Expected nodes, and the time since which each has been in no list.
    nodes: BTreeMap<NodeDesc, Option<Mono>>,
}

impl Expected {
    /// Updates the expected nodes from a state that the agent has read.
    pub fn see(&mut self, state: &RendezvousState, now: Mono) {
        if state.complete {
            if self.round != Some(state.round) {
                self.round = Some(state.round);
                self.nodes.clear();
            }
            for node in listed(state) {
                self.nodes.insert(node.clone(), None);
            }
        } else if self.round.map(|round| round + 1) != Some(state.round) {
            self.round = None;
            self.nodes.clear();
        }
        for (node, absent) in &mut self.nodes {
            *absent = if is_listed(state, node) {
                None
            } else {
                absent.or(Some(now))
            };
        }
    }

    /// Removes lost nodes, which are no longer expected.
    pub fn forget(&mut self, lost: &[NodeDesc]) {
        for node in lost {
            self.nodes.remove(node);
        }
    }

    /// `true` if all expected nodes participate in the forming round.
    ///
    /// `false` while a node waits or is a spare. `state` must no longer contain lost nodes.
    pub fn are_here(&self, state: &RendezvousState, now: Mono) -> bool {
        !state.complete
            && self.round.map(|round| round + 1) == Some(state.round)
            && state.wait_list.is_empty()
            && state.redundancy_list.is_empty()
            && self.nodes.iter().all(|(node, absent)| {
                state.participants.contains_key(node)
                    || absent.is_some_and(|since| now.since(since) >= BETWEEN_ROUNDS)
            })
    }

    /// Returns the next time at which an absent node is no longer expected.
    pub fn next_given_up(&self, now: Mono) -> Option<Mono> {
        self.nodes
            .values()
            .flatten()
            .map(|since| *since + BETWEEN_ROUNDS)
            .filter(|at| *at > now)
            .min()
    }
}

fn listed(state: &RendezvousState) -> impl Iterator<Item = &NodeDesc> {
    state
        .participants
        .keys()
        .chain(&state.wait_list)
        .chain(&state.redundancy_list)
}

/// `true` if a node is in one of the lists.
pub fn is_listed(state: &RendezvousState, node: &NodeDesc) -> bool {
    state.participants.contains_key(node)
        || state.wait_list.contains(node)
        || state.redundancy_list.contains(node)
}
