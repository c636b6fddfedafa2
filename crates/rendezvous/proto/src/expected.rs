//! Who can be expected in the round after a change.

use std::collections::BTreeMap;
use std::time::Duration;

use rdzv_core::time::Mono;

use super::{NodeDesc, RendezvousState};

/// How long a node of the former round that is in no list is still expected. Agents of torchrun leave a
/// round and enter the next one in two writes, and are in no list between them.
const BETWEEN_ROUNDS: Duration = Duration::from_secs(1);

/// The nodes that were in the last complete round, or waited beside it, as far as we saw.
///
/// When they leave that round because something changed, each of them comes back at once or not
/// at all, and is seen waiting until it has. So the round is complete when the last one is back,
/// and no last call is needed: there is nobody whom it could reach. A newcomer that nobody knew
/// of finds a complete round and waits for the next, as it would have if it had come a moment after
/// a last call. Who did not see the former round, because there was none or because it came later,
/// expects nobody and waits the last call out.
#[derive(Debug, Default)]
pub struct Expected {
    /// The round that was seen to be complete.
    round: Option<u64>,
    /// Who was there, and since when it is in no list any more.
    nodes: BTreeMap<NodeDesc, Option<Mono>>,
}

impl Expected {
    /// Takes in a state of the store.
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

    /// These nodes are lost, and not expected any more.
    pub fn forget(&mut self, lost: &[NodeDesc]) {
        for node in lost {
            self.nodes.remove(node);
        }
    }

    /// Whether everybody who can be expected takes part in the round that is forming. `state` is
    /// the state without the nodes that are lost.
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

    /// When the next node that is in no list will not be expected any more.
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

/// Whether a node is in one of the lists.
pub fn is_listed(state: &RendezvousState, node: &NodeDesc) -> bool {
    state.participants.contains_key(node)
        || state.wait_list.contains(node)
        || state.redundancy_list.contains(node)
}
