//! What a node that is in a complete round notices about it. Every fact is told once.

use std::collections::BTreeSet;

use crate::expected::is_listed;
use crate::words::{Change, Formed};
use crate::{NodeDesc, RendezvousState, Settings};

/// The round that a node is in.
#[derive(Debug)]
pub(super) struct Membership {
    formed: Formed,
    told_waiting: BTreeSet<NodeDesc>,
    told_lost: BTreeSet<NodeDesc>,
    told_closed: bool,
}

impl Membership {
    pub(super) fn new(formed: Formed) -> Self {
        Self {
            formed,
            told_waiting: BTreeSet::new(),
            told_lost: BTreeSet::new(),
            told_closed: false,
        }
    }

    pub(super) fn round(&self) -> u64 {
        self.formed.round
    }

    /// What is new in `state`, which is without the nodes that are lost. [`Change::Dropped`] comes
    /// alone and ends the membership.
    pub(super) fn changes(
        &mut self,
        state: &RendezvousState,
        me: &NodeDesc,
        settings: &Settings,
    ) -> Vec<Change> {
        if self.told_closed {
            return Vec::new();
        }
        if state.closed {
            self.told_closed = true;
            return vec![Change::Closed];
        }
        let same_round = state.complete && state.round == self.formed.round;
        if !same_round || !state.participants.contains_key(me) {
            return vec![Change::Dropped];
        }
        let mut changes = Vec::new();
        // Who waits for the next round has left this one on purpose, and is told as waiting.
        let lost: BTreeSet<_> = self
            .formed
            .participants
            .iter()
            .filter(|node| !is_listed(state, node))
            .cloned()
            .collect();
        let newly_lost: Vec<_> = lost.difference(&self.told_lost).cloned().collect();
        if !newly_lost.is_empty() {
            changes.push(Change::NodesLost(newly_lost));
        }
        self.told_lost = lost;
        // Nobody who waits gets into a full round; they will become surplus.
        let full = state.participants.len() >= settings.max_nodes as usize;
        if full {
            self.told_waiting.clear();
            return changes;
        }
        if state.wait_list.difference(&self.told_waiting).count() > 0 {
            changes.push(Change::NodesWaiting(
                state.wait_list.iter().cloned().collect(),
            ));
        }
        self.told_waiting.clone_from(&state.wait_list);
        changes
    }
}
