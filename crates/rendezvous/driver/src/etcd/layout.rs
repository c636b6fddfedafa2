//! Keys of a run in etcd.
//!
//! ```text
//! <etcd_prefix>/run_<run id>/
//!     state               the state, as plain pickle
//!     changes             written after each change that other nodes wait for; the nodes watch it
//!     members/<node>      exists while the node's lease lives; a deletion means that the node has
//!                         ended; a node that leaves writes "left" before it deletes the key
//!     rounds/<number>/    one folder per round, numbered with 20 digits
//!         keys/<key>      the agents' store of that round: plain values under plain keys
//!         applied/<id>    last counted operation of a client, so that a repeated one counts once
//! ```
//!
//! `/` and `%` in a run id are escaped as in URLs, so that the keys of different runs stay
//! separate. Everything except the members is attached to a lease of two hours. Its writer renews
//! the lease while it lives, and etcd deletes the keys of a lease that no process renews. A node
//! that enters round N deletes the rounds before N - 1. A slow node may still use round N - 1.

use rdzv_core::ident::RunId;
use rdzv_rendezvous_proto::NodeDesc;

/// Names of the keys of one run.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    base: String,
}

impl Layout {
    pub(crate) fn new(prefix: &str, run_id: &RunId) -> Self {
        let run_id = run_id.as_str().replace('%', "%25").replace('/', "%2F");
        let prefix = prefix.trim_end_matches('/');
        Self {
            base: format!("{prefix}/run_{run_id}"),
        }
    }

    pub(crate) fn state(&self) -> String {
        format!("{}/state", self.base)
    }

    pub(crate) fn changes(&self) -> String {
        format!("{}/changes", self.base)
    }

    pub(crate) fn members(&self) -> String {
        format!("{}/members/", self.base)
    }

    pub(crate) fn member(&self, node: &NodeDesc) -> String {
        let NodeDesc {
            addr,
            pid,
            local_id,
        } = node;
        format!("{}{addr}_{pid}_{local_id}", self.members())
    }

    /// Returns the node of a key below [`Layout::members`].
    pub(crate) fn node(&self, key: &[u8]) -> Option<NodeDesc> {
        let name = std::str::from_utf8(key).ok()?;
        let name = name.strip_prefix(&self.members())?;
        let mut parts = name.rsplitn(3, '_');
        let local_id = parts.next()?.parse().ok()?;
        let pid = parts.next()?.parse().ok()?;
        let addr = parts.next()?.to_owned();
        Some(NodeDesc {
            addr,
            pid,
            local_id,
        })
    }

    /// Returns the folder of a round. No folder sorts before the one of round 0.
    pub(crate) fn round(&self, round: u64) -> String {
        format!("{}/rounds/{round:020}/", self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_key_names_its_node() {
        let layout = Layout::new("/p/", &RunId::new("a/b%"));
        assert_eq!(layout.state(), "/p/run_a%2Fb%25/state");
        let node = NodeDesc::new("node_a/b", 17);
        let key = layout.member(&node);
        assert_eq!(layout.node(key.as_bytes()), Some(node));
        for foreign in ["/p/run_a/members/x_1_0", "/p/run_a%2Fb%25/members/x_1", ""] {
            assert_eq!(layout.node(foreign.as_bytes()), None, "{foreign}");
        }
    }

    #[test]
    fn rounds_are_in_order() {
        let layout = Layout::new("", &RunId::new("r"));
        assert!(layout.round(0) < layout.round(9));
        assert!(layout.round(9) < layout.round(10));
        assert!(layout.round(10) < layout.round(u64::MAX));
    }
}
