//! Static nodes announce to one another that one of them has failed permanently.
//!
//! Nothing in a static rendezvous says so: the others would go on, and hang in their collectives or
//! at the exit barrier. Therefore a node that fails for good writes that below a key of each other
//! node, and each node waits for its own key, over a connection of its own and without asking
//! again. The first word counts; an empty one, from the node itself, ends the waiting. Nodes of
//! `torchrun` neither write nor read these keys.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdzv_core::escape::escape;
use rdzv_store::{Store, StoreError, TcpStore, TcpStoreOptions};
use tracing::debug;

use super::{SharedObserver, StaticParameters};
use crate::Change;
use crate::runtime::beside;

/// How long it may take to reach the store when there is something to announce.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// How long one wait for a failure is. It begins anew until the run ends.
const ONE_WAIT: Duration = Duration::from_hours(24);

/// This node's part in it.
#[derive(Debug, Clone)]
pub(super) struct FailureChannel {
    nodes: StaticParameters,
    /// The connection for what this node says, as soon as there is one.
    speaking: Arc<OnceLock<TcpStore>>,
}

impl FailureChannel {
    /// Waits for a failure beside the caller, and tells the observer.
    pub(super) fn listen(nodes: StaticParameters, observer: SharedObserver) -> io::Result<Self> {
        let channel = Self {
            nodes,
            speaking: Arc::default(),
        };
        let listening = channel.clone();
        beside(move || match listening.wait() {
            Ok(Some(change)) => observer(change),
            Ok(None) => {}
            // The node with the store has ended, which is no failure by itself.
            Err(error) => {
                debug!("failures of the other nodes are not noticed any more: {error}");
            }
        })?;
        Ok(channel)
    }

    /// Tells all other nodes that this one, of that name, has failed for good.
    pub(super) fn announce(&self, name: &str, reason: &str) -> Result<(), StoreError> {
        let us = self.nodes.node_rank.0;
        let others = (0..self.nodes.nodes).filter(|node| *node != us);
        self.write(others, &format!("{name} (node rank {us})\n{reason}"))
    }

    /// Ends the waiting for failures. May take a few seconds.
    pub(super) fn end(&self) {
        if let Err(error) = self.write([self.nodes.node_rank.0], "") {
            debug!("the store has ended before this node: {error}");
        }
    }

    fn store(&self) -> Result<TcpStore, StoreError> {
        let endpoint = &self.nodes.endpoint;
        TcpStore::connect(TcpStoreOptions {
            timeout: REACHED_WITHIN,
            wait_for_workers: false,
            ..self.nodes.policy.client(&endpoint.host, endpoint.port)
        })
    }

    /// Waits for the first word; none if the run has ended. Before that, opens the connection for
    /// what this node has to say: a server that is about to end takes no more of them.
    fn wait(&self) -> Result<Option<Change>, StoreError> {
        let _the_only_one_who_sets_it = self.speaking.set(self.store()?);
        let store = self.store()?;
        let key = self.nodes.failure_key(self.nodes.node_rank.0);
        while let Err(error) = store.wait(&[&key], Some(ONE_WAIT)) {
            if !matches!(error, StoreError::WaitTimeout { .. }) {
                return Err(error);
            }
        }
        let said = store.get(&key)?;
        Ok(announced(&said))
    }

    fn write(&self, nodes: impl IntoIterator<Item = u32>, word: &str) -> Result<(), StoreError> {
        let own;
        let store = match self.speaking.get() {
            Some(store) => store,
            None => {
                own = self.store()?;
                &own
            }
        };
        for node in nodes {
            let key = self.nodes.failure_key(node);
            store.compare_set(&key, b"", word.as_bytes())?;
        }
        Ok(())
    }
}

/// The failure that another node has announced with these bytes; none if it has not.
fn announced(said: &[u8]) -> Option<Change> {
    let said = String::from_utf8_lossy(said);
    let (node, reason) = said.split_once('\n')?;
    // A record may follow the sentence: `Failure::decode` escapes the texts of both.
    let (node, reason) = (escape(node), reason.to_owned());
    Some(Change::PeerFailed { node, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_node_is_escaped() {
        match announced(b"b\x1b[2J\nworker 3 failed") {
            Some(Change::PeerFailed { node, reason }) => {
                assert_eq!(node, "b\\u{1b}[2J");
                assert_eq!(reason, "worker 3 failed");
            }
            other => panic!("{other:?}"),
        }
        assert!(announced(b"").is_none());
    }
}
