//! The state that the agents of a run share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rdzv_core::escape::escape;
use rdzv_core::time::{Mono, Wall};

/// Descriptor of a node, as other nodes know it.
///
/// Nodes are ordered by address (by code point), process id and local id. Sorted ranks follow this
/// order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeDesc {
    /// Name or address at which other nodes can reach the node.
    pub addr: String,
    /// Process id of the node's agent.
    pub pid: i64,
    /// Number of the rendezvous in that process, starting at 0.
    pub local_id: i64,
}

impl NodeDesc {
    /// Creates the descriptor of the first rendezvous in a process.
    pub fn new(addr: impl Into<String>, pid: i64) -> Self {
        Self {
            addr: addr.into(),
            pid,
            local_id: 0,
        }
    }
}

impl fmt::Display for NodeDesc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only the printed address is escaped; the state keeps the address that the node wrote.
        let addr = escape(&self.addr);
        write!(formatter, "{addr}_{}_{}", self.pid, self.local_id)
    }
}

/// State of one run's rendezvous.
///
/// Each time comes from the wall clock of the process that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousState {
    /// Number of the round that is forming or complete, starting at 0.
    pub round: u64,
    /// `true` if the round is complete.
    pub complete: bool,
    /// End of the last call; `None` if there is none.
    pub deadline: Option<Wall>,
    /// `true` if the run is over. A closed run never opens again.
    pub closed: bool,
    /// Participants and their ranks; all ranks are 0 until the round is complete.
    pub participants: BTreeMap<NodeDesc, u32>,
    /// Nodes that wait for the next round.
    pub wait_list: BTreeSet<NodeDesc>,
    /// Spare nodes, which wait because the round is full.
    pub redundancy_list: BTreeSet<NodeDesc>,
    /// Time of the last heartbeat of each node in the three lists above.
    pub last_heartbeats: BTreeMap<NodeDesc, Wall>,
    /// `true` if times have no time zone and mean UTC.
    ///
    /// Releases of PyTorch before 2.6 write such times. A writer must keep the form: Python cannot
    /// compare times with a zone to times without a zone.
    pub has_naive_times: bool,
}

impl RendezvousState {
    /// Updates known heartbeats, and the local times at which they were seen.
    pub(crate) fn see_heartbeats(&self, known: &mut BTreeMap<NodeDesc, (Wall, Mono)>, now: Mono) {
        let beats = &self.last_heartbeats;
        known.retain(|node, _| beats.contains_key(node));
        for (node, beat) in beats {
            if known.get(node).is_none_or(|(known, _)| known != beat) {
                known.insert(node.clone(), (*beat, now));
            }
        }
    }
}
