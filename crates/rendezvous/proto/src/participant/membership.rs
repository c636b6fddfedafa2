//! Changes of a complete round, and the detection of lost nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::{Formed, ParticipantChange};
use crate::expected::is_listed;
use crate::{NodeDesc, RendezvousState, Settings};
use rdzv_core::time::{Mono, Wall};

/// The round that a node is in.
#[derive(Debug, Default)]
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
            ..Self::default()
        }
    }

    pub(super) fn round(&self) -> u64 {
        self.formed.round
    }

    /// Returns the new changes in `state`, which must not contain lost nodes.
    ///
    /// [`ParticipantChange::Dropped`] is the only change in its list, and ends the membership.
    pub(super) fn changes(
        &mut self,
        state: &RendezvousState,
        me: &NodeDesc,
        settings: &Settings,
    ) -> Vec<ParticipantChange> {
        if self.reported_closed {
            return Vec::new();
        }
        if state.closed {
            self.reported_closed = true;
            return vec![ParticipantChange::Closed];
        }
        let same_round = state.complete && state.round == self.formed.round;
        if !same_round || !state.participants.contains_key(me) {
            return vec![ParticipantChange::Dropped];
        }
        let mut changes = Vec::new();
        // A node that waits for the next round is running: it has left this one, or was removed as
        // lost and is back. It is reported as waiting.
        let participants = self.formed.participants.iter();
        let lost = participants.filter(|node| !is_listed(state, node));
        let lost: BTreeSet<_> = lost.cloned().collect();
        let newly_lost: Vec<_> = lost.difference(&self.reported_lost).cloned().collect();
        if !newly_lost.is_empty() {
            changes.push(ParticipantChange::NodesLost(newly_lost));
        }
        self.reported_lost = lost;
        // Waiting nodes do not get into a full round; they will become spares.
        let full = state.participants.len() >= settings.max_nodes as usize;
        if full {
            self.reported_waiting.clear();
            return changes;
        }
        if state.wait_list.difference(&self.reported_waiting).count() > 0 {
            let waiting = state.wait_list.iter().cloned().collect();
            changes.push(ParticipantChange::NodesWaiting(waiting));
        }
        self.reported_waiting.clone_from(&state.wait_list);
        changes
    }
}

/// Nodes that are lost, as a source other than heartbeats reports.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Lost nodes whose last heartbeat is still unknown.
    pub(super) unread: Vec<NodeDesc>,
    /// Last heartbeats of lost nodes.
    ///
    /// A node with another heartbeat is no longer lost.
    pub(super) since: BTreeMap<NodeDesc, Wall>,
}

impl Gone {
    /// Stores the last heartbeats of nodes that were lost before `state` was read.
    ///
    /// A later heartbeat proves that the node is running.
    pub(super) fn note_heartbeats(&mut self, state: &RendezvousState, nodes: Vec<NodeDesc>) {
        for node in nodes {
            if let Some(last) = state.last_heartbeats.get(&node) {
                self.since.insert(node, *last);
            }
        }
    }

    /// Forgets nodes with another heartbeat, or with none.
    pub(super) fn retain(&mut self, state: &RendezvousState) {
        self.since
            .retain(|node, last| state.last_heartbeats.get(node) == Some(last));
    }
}

/// Last heartbeat of each node, with the local time at which it was first seen.
///
/// A heartbeat is a time of the node's clock, which may differ from the local one. So only a
/// changed heartbeat proves that the node is running.
#[derive(Debug, Default)]
pub(super) struct Heard {
    nodes: BTreeMap<NodeDesc, (Wall, Mono)>,
}

impl Heard {
    pub(super) fn see(&mut self, state: &RendezvousState, now: Mono) {
        state.see_heartbeats(&mut self.nodes, now);
    }

    /// Returns the local time at which the last heartbeat of a node was first seen.
    pub(super) fn last(&self, node: &NodeDesc) -> Option<Mono> {
        self.nodes.get(node).map(|(_, heard)| *heard)
    }
}
