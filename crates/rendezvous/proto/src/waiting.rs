//! Messages while a round waits for nodes.
//!
//! Without them, a job that waits for a missing node seems to do nothing.

use std::fmt;
use std::time::Duration;

use super::{NodeDesc, RendezvousState, Settings};
use rdzv_core::escape::escape;

/// Maximum number of hosts that a message lists.
pub const MOST_NAMED: usize = 4;

/// The nodes that have joined a round, as a waiting node sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Arrived {
    /// Number of nodes that have joined.
    pub nodes: u32,
    /// Hosts of the first nodes, at most [`MOST_NAMED`].
    pub named: Vec<String>,
    /// `true` if the round is full and this node is a spare.
    pub is_spare: bool,
}

impl Arrived {
    /// Returns the nodes that have joined in a state.
    ///
    /// `None` if `me` neither is a spare nor participates in a forming round.
    pub fn seen_by(me: &NodeDesc, state: &RendezvousState) -> Option<Self> {
        let is_spare = state.redundancy_list.contains(me);
        let forms = !state.complete && state.participants.contains_key(me);
        (is_spare || forms).then(|| Self::of(state.participants.keys(), is_spare))
    }

    /// Creates the view of these participants that a waiting agent has.
    pub(crate) fn of<'a>(
        participants: impl ExactSizeIterator<Item = &'a NodeDesc>,
        is_spare: bool,
    ) -> Self {
        Self {
            nodes: u32::try_from(participants.len()).unwrap_or(u32::MAX),
            named: participants
                .take(MOST_NAMED)
                .map(|node| escape(&node.addr))
                .collect(),
            is_spare,
        }
    }
}

/// A join that has not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// The nodes that have joined, if they are known.
    pub arrived: Option<Arrived>,
    /// Minimum number of nodes of a round.
    pub min_nodes: u32,
    /// Maximum number of nodes of a round.
    pub max_nodes: u32,
    /// Time until the join fails, unless this node is a spare.
    pub left: Duration,
}

impl Waiting {
    /// Creates the message for a join that has taken `elapsed` until now.
    pub fn new(arrived: Option<Arrived>, settings: &Settings, elapsed: Duration) -> Self {
        Self {
            arrived,
            min_nodes: settings.min_nodes,
            max_nodes: settings.max_nodes,
            left: settings.join_timeout.saturating_sub(elapsed),
        }
    }

    /// `true` if the round has enough nodes and waits for more.
    ///
    /// The last call has a separate message.
    pub fn is_last_call(&self) -> bool {
        let enough = |arrived: &Arrived| !arrived.is_spare && arrived.nodes >= self.min_nodes;
        self.arrived.as_ref().is_some_and(enough)
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            min_nodes,
            max_nodes,
            ..
        } = self;
        let needed = if min_nodes == max_nodes {
            format!("{min_nodes}")
        } else {
            format!("at least {min_nodes}")
        };
        let left = left(self.left);
        let Some(arrived) = &self.arrived else {
            return write!(
                formatter,
                "waiting for nodes: the job needs {needed}; {left} left; start the same command on \
                 the other nodes"
            );
        };
        let (nodes, hosts) = (arrived.nodes, hosts(arrived));
        if arrived.is_spare {
            let nodes = match nodes {
                1 => "1 node".to_owned(),
                _ => format!("{nodes} nodes"),
            };
            write!(
                formatter,
                "in reserve: the job has its {nodes} ({hosts}); this node joins when one of them \
                 is lost"
            )
        } else if self.is_last_call() {
            write!(
                formatter,
                "waiting for more nodes: {nodes} of up to {max_nodes} ({hosts})"
            )
        } else {
            write!(
                formatter,
                "waiting for nodes: {nodes} of {needed} ({hosts}); {left} left; start the same \
                 command on the other nodes"
            )
        }
    }
}

/// Returns the hosts, each once, and the number of nodes that are not listed.
fn hosts(arrived: &Arrived) -> String {
    let unnamed = (arrived.nodes as usize).saturating_sub(arrived.named.len());
    let mut hosts: Vec<String> = Vec::new();
    for host in &arrived.named {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    if unnamed > 0 {
        hosts.push(format!("{unnamed} more"));
    }
    hosts.join(", ")
}

/// Formats a time as `8:20` or `1:08:20`.
fn left(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(addr: &str, pid: i64) -> NodeDesc {
        NodeDesc::new(addr, pid)
    }

    fn text(state: &RendezvousState, me: &NodeDesc, min: u32, max: u32) -> String {
        let mut settings = Settings::new(min, max);
        settings.join_timeout = Duration::from_secs(600);
        let arrived = Arrived::seen_by(me, state);
        Waiting::new(arrived, &settings, Duration::from_secs(100)).to_string()
    }

    #[test]
    fn those_that_came_are_named() {
        let mut state = RendezvousState::default();
        let me = node("node-a", 1);
        state.participants.insert(me.clone(), 0);
        state.participants.insert(node("node-c", 1), 0);
        assert_eq!(
            text(&state, &me, 4, 4),
            "waiting for nodes: 2 of 4 (node-a, node-c); 8:20 left; start the same command on the \
             other nodes"
        );
        state.participants.insert(node("node-c", 2), 0);
        for number in 0..9 {
            state.participants.insert(node(&format!("x{number}"), 1), 0);
        }
        assert_eq!(
            text(&state, &me, 16, 20),
            "waiting for nodes: 12 of at least 16 (node-a, node-c, x0, 8 more); 8:20 left; start the same \
             command on the other nodes"
        );
    }

    #[test]
    fn a_node_in_reserve_hears_that_it_is() {
        let mut state = RendezvousState::default();
        state.participants.insert(node("node-a", 1), 0);
        state.complete = true;
        let spare = node("node-b", 1);
        state.redundancy_list.insert(spare.clone());
        assert_eq!(
            text(&state, &spare, 1, 1),
            "in reserve: the job has its 1 node (node-a); this node joins when one of them is lost"
        );
    }

    #[test]
    fn what_is_not_known_is_not_claimed() {
        let me = node("node-a", 1);
        assert_eq!(
            text(&RendezvousState::default(), &me, 2, 2),
            "waiting for nodes: the job needs 2; 8:20 left; start the same command on the other \
             nodes"
        );
    }

    #[test]
    fn the_last_call_is_for_more_nodes() {
        let me = node("node-a", 1);
        let mut state = RendezvousState::default();
        state.participants.insert(me.clone(), 0);
        assert_eq!(
            text(&state, &me, 1, 3),
            "waiting for more nodes: 1 of up to 3 (node-a)"
        );
    }

    #[test]
    fn long_times_have_hours() {
        assert_eq!(left(Duration::from_secs(4100)), "1:08:20");
        assert_eq!(left(Duration::from_secs(5)), "0:05");
    }
}
