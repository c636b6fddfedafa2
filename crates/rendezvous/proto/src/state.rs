//! What the agents of a run share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use rdzv_core::escape::escape;
use rdzv_core::time::Wall;
use rdzv_pickle::Value;

/// A node as the others know it. Nodes are ordered by address (by code point), process id and local
/// id, and their ranks follow that order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeDesc {
    /// Name or address by which others can reach it.
    pub addr: String,
    /// Process id of its agent.
    pub pid: i64,
    /// Number of the rendezvous in that process, from 0.
    pub local_id: i64,
}

impl fmt::Display for NodeDesc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address is what the node has written, and stays that in the state.
        let addr = escape(&self.addr);
        write!(formatter, "{addr}_{}_{}", self.pid, self.local_id)
    }
}

/// The state of one run's rendezvous. Times are the wall clock of whoever wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RendezvousState {
    /// Number of the round that is forming or complete, from 0.
    pub round: u64,
    /// Whether this round is formed.
    pub complete: bool,
    /// End of the last call, once enough nodes for a round have come.
    pub deadline: Option<Wall>,
    /// Whether the run is over. Never taken back.
    pub closed: bool,
    /// Who takes part, and at which rank; all ranks are 0 until the round is complete.
    pub participants: BTreeMap<NodeDesc, u32>,
    /// Who wants to take part in the next round.
    pub wait_list: BTreeSet<NodeDesc>,
    /// Who waits because the round is full.
    pub redundancy_list: BTreeSet<NodeDesc>,
    /// When each node of the three was last heard of.
    pub last_heartbeats: BTreeMap<NodeDesc, Wall>,
    /// How those who wrote it write, and what they wrote that has no meaning here.
    pub dialect: Dialect,
}

/// What of a state depends on who writes it, and must be written back as it came so that the others
/// can go on reading it. The default is what current releases write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Dialect {
    /// Times have no time zone and mean UTC (releases before 2.6 cannot compare others with theirs,
    /// later ones cannot compare these with theirs).
    pub naive_times: bool,
    /// There is no redundancy list (releases before 2.3). It is written nevertheless once a node is
    /// in it.
    pub no_redundancy_list: bool,
    /// Attributes of the state that are not known here, in the order they came.
    pub attributes: Vec<(Value, Value)>,
    /// Those of nodes.
    pub node_attributes: BTreeMap<NodeDesc, Vec<(Value, Value)>>,
}
