//! The changes of a complete round that a participant reports, each once; and who is known to be gone
//! by other means than heartbeats.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, Formed};
use crate::expected::is_listed;
use crate::{NodeDesc, RendezvousState, Settings};
use rdzv_core::time::{Mono, Wall};

/// The round that a node is in.
#[derive(Debug)]
pub(super) struct Membership {
    formed: Formed,
    reported_waiting: BTreeSet<NodeDesc>,
    reported_lost: BTreeSet<NodeDesc>,
    reported_closed: bool,
}

impl Membership {
    pub(super) fn new(formed: Formed) -> Self {
        Self {
            formed,
            reported_waiting: BTreeSet::new(),
            reported_lost: BTreeSet::new(),
            reported_closed: false,
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
        if self.reported_closed {
            return Vec::new();
        }
        if state.closed {
            self.reported_closed = true;
            return vec![Change::Closed];
        }
        let same_round = state.complete && state.round == self.formed.round;
        if !same_round || !state.participants.contains_key(me) {
            return vec![Change::Dropped];
        }
        let mut changes = Vec::new();
        // Who waits for the next round has left this one on purpose, and is reported as waiting.
        let participants = self.formed.participants.iter();
        let lost = participants.filter(|node| !is_listed(state, node));
        let lost: BTreeSet<_> = lost.cloned().collect();
        let newly_lost: Vec<_> = lost.difference(&self.reported_lost).cloned().collect();
        if !newly_lost.is_empty() {
            changes.push(Change::NodesLost(newly_lost));
        }
        self.reported_lost = lost;
        // Nobody who waits gets into a full round; they will become surplus.
        let full = state.participants.len() >= settings.max_nodes as usize;
        if full {
            self.reported_waiting.clear();
            return changes;
        }
        if state.wait_list.difference(&self.reported_waiting).count() > 0 {
            let waiting = state.wait_list.iter().cloned().collect();
            changes.push(Change::NodesWaiting(waiting));
        }
        self.reported_waiting.clone_from(&state.wait_list);
        changes
    }
}

/// Nodes that are known to be gone by other means than heartbeats.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Those whose last heartbeat is not known yet.
    pub(super) unread: Vec<NodeDesc>,
    /// Those that are gone as long as this is their last heartbeat.
    pub(super) since: BTreeMap<NodeDesc, Wall>,
}

impl Gone {
    /// Notes the last heartbeats of nodes that were gone before `state` was read: a later one says
    /// that the node is back.
    pub(super) fn note_heartbeats(&mut self, state: &RendezvousState, nodes: Vec<NodeDesc>) {
        for node in nodes {
            if let Some(last) = state.last_heartbeats.get(&node) {
                self.since.insert(node, *last);
            }
        }
    }

    /// Forgets who is back, or not there any more.
    pub(super) fn retain(&mut self, state: &RendezvousState) {
        self.since
            .retain(|node, last| state.last_heartbeats.get(node) == Some(last));
    }
}

/// When each node was last heard of, by our own clock: its heartbeat is a time of its own clock, which
/// may be far from ours, so that only a heartbeat that is another one says something.
#[derive(Debug, Default)]
pub(super) struct Heard {
    nodes: BTreeMap<NodeDesc, (Wall, Mono)>,
}

impl Heard {
    /// Takes in the heartbeats of a state that was read.
    pub(super) fn see(&mut self, state: &RendezvousState, now: Mono) {
        let beats = &state.last_heartbeats;
        self.nodes.retain(|node, _| beats.contains_key(node));
        for (node, beat) in beats {
            let known = self.nodes.get(node);
            if known.is_none_or(|(known, _)| known != beat) {
                self.nodes.insert(node.clone(), (*beat, now));
            }
        }
    }

    /// When a node was heard of.
    pub(super) fn last(&self, node: &NodeDesc) -> Option<Mono> {
        self.nodes.get(node).map(|(_, heard)| *heard)
    }
}
