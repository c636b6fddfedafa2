//! Who is known to be gone by other means than heartbeats.

use std::collections::BTreeMap;

use crate::{NodeDesc, RendezvousState};
use rdzv_core::time::Wall;

/// Nodes that are known to be gone by other means than heartbeats.
#[derive(Debug, Default)]
pub(super) struct Gone {
    /// Those whose last heartbeat has to be looked up.
    pub(super) told: Vec<NodeDesc>,
    /// Those that are gone as long as this is their last heartbeat.
    pub(super) since: BTreeMap<NodeDesc, Wall>,
}

impl Gone {
    /// Notes the last heartbeats of nodes that were gone before `state` was read: a later one says
    /// that the node is back.
    pub(super) fn look_up(&mut self, state: &RendezvousState, nodes: Vec<NodeDesc>) {
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
