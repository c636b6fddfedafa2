//! Notices of permanent failures between static nodes.
//!
//! Without a notice, the other nodes would continue, and hang in their collectives or at the exit
//! barrier. A node that fails permanently therefore writes a notice to one key per other node. Each
//! node waits for its key on a separate connection, without polling. Only the first notice counts.
//! A node ends its wait by an empty notice to itself. Nodes of `torchrun` neither write nor read
//! these keys.

use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rdzv_core::escape::escape;
use rdzv_store::{Store, StoreError, TcpStore, TcpStoreOptions};
use tracing::debug;

use super::{SharedObserver, StaticParameters};
use crate::Change;
use crate::runtime::beside;

/// Time limit to connect to the store for a notice.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// Duration of one wait for a failure. The wait is repeated until the run ends.
const ONE_WAIT: Duration = Duration::from_hours(24);

/// Channel of this node for notices.
#[derive(Debug, Clone)]
pub(super) struct FailureChannel {
    nodes: StaticParameters,
    /// Connection for the notices of this node, once it exists.
    speaking: Arc<OnceLock<TcpStore>>,
}

impl FailureChannel {
    /// Starts a thread that waits for a failure and calls the observer.
    pub(super) fn listen(nodes: StaticParameters, observer: SharedObserver) -> io::Result<Self> {
        let channel = Self {
            nodes,
            speaking: Arc::default(),
        };
        let listening = channel.clone();
        beside(move || match listening.wait() {
            Ok(Some(change)) => observer(change),
            Ok(None) => {}
            // The node that hosts the store has exited, which alone is not a failure.
            Err(error) => {
                debug!("cannot detect failures of other nodes any longer: {error}");
            }
        })?;
        Ok(channel)
    }

    /// Sends the permanent failure of this node, called `name`, to all other nodes.
    pub(super) fn announce(&self, name: &str, reason: &str) -> Result<(), StoreError> {
        let us = self.nodes.node_rank.0;
        let others = (0..self.nodes.nodes).filter(|node| *node != us);
        self.write(others, &format!("{name} (node rank {us})\n{reason}"))
    }

    /// Ends the wait for failures. This may take a few seconds.
    pub(super) fn end(&self) {
        if let Err(error) = self.write([self.nodes.node_rank.0], "") {
            debug!("the store stopped before this node: {error}");
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

    /// Waits for the first notice. Returns `None` if the run has ended.
    ///
    /// Before the wait, it opens the connection for the notices of this node, because a server that
    /// is about to end accepts no new connections.
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

/// Parses the notice of another node; `None` if it is empty.
fn announced(said: &[u8]) -> Option<Change> {
    let said = String::from_utf8_lossy(said);
    let (node, reason) = said.split_once('\n')?;
    // A record may follow the first line: `Failure::decode` escapes the texts of both.
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
