//! Static nodes announce to one another that one of them has failed permanently.
//!
//! Nothing in a static rendezvous says so: the others would go on, and hang in their collectives or
//! at the exit barrier. So whoever fails for good writes that below a key of each other node, and
//! each node waits for its own key, over a connection of its own and without asking again. The
//! first word counts; an empty one, from the node itself, ends the waiting. Nodes of `torchrun`
//! neither write nor read these keys.

use std::io;
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rdzv_core::escape::escape;
use rdzv_rendezvous::{Change, StaticRendezvous};
use rdzv_store::{Store, StoreError, TcpStore, TcpStoreOptions};
use rdzv_store_proto::prefix::join;
use tokio::sync::mpsc::UnboundedSender;
use tracing::{debug, warn};

use super::Answer;
use crate::host;

/// How long it may take to reach the store when there is something to announce.
const REACHED_WITHIN: Duration = Duration::from_secs(5);

/// How long one wait for a failure is. It begins anew until the run ends.
const ONE_WAIT: Duration = Duration::from_hours(24);

/// Where the failures of one node are written and read.
#[derive(Debug, Clone)]
pub(super) struct ChannelAddress {
    /// Where the store is.
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) run_id: String,
    /// This node's rank.
    pub(super) us: u32,
    /// How many nodes there are.
    pub(super) nodes: u32,
}

impl ChannelAddress {
    fn key(&self, node: u32) -> String {
        join(&self.run_id, &StaticRendezvous::failure_key(node))
    }

    fn store(&self) -> Result<TcpStore, StoreError> {
        TcpStore::connect(TcpStoreOptions {
            timeout: REACHED_WITHIN,
            wait_for_workers: false,
            ..TcpStoreOptions::new(&self.host, self.port)
        })
    }

    /// Waits for the first word; none if the run has ended. Before that, opens the connection for
    /// what this node has to say: a server that is about to end takes no more of them.
    fn wait(&self, speaking: &OnceLock<TcpStore>) -> Result<Option<Change>, StoreError> {
        let _the_only_one_who_sets_it = speaking.set(self.store()?);
        let store = self.store()?;
        let key = self.key(self.us);
        while let Err(error) = store.wait(&[&key], Some(ONE_WAIT)) {
            if !matches!(error, StoreError::WaitTimeout { .. }) {
                return Err(error);
            }
        }
        let said = store.get(&key)?;
        Ok(announced(&said))
    }

    fn write(
        &self,
        store: &OnceLock<TcpStore>,
        nodes: impl Iterator<Item = u32>,
        word: &str,
    ) -> Result<(), StoreError> {
        let own;
        let store = match store.get() {
            Some(store) => store,
            None => {
                own = self.store()?;
                &own
            }
        };
        for node in nodes {
            store.compare_set(&self.key(node), b"", word.as_bytes())?;
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

/// This node's part in it.
#[derive(Debug)]
pub(super) struct FailureChannel {
    place: ChannelAddress,
    /// The connection for what this node says, as soon as there is one.
    speaking: Arc<OnceLock<TcpStore>>,
    telling: Option<JoinHandle<()>>,
}

impl FailureChannel {
    /// Has a thread wait for failures, which come as answers.
    pub(super) fn listen(
        place: ChannelAddress,
        answers: UnboundedSender<Answer>,
    ) -> io::Result<Self> {
        let listening = place.clone();
        let speaking: Arc<OnceLock<TcpStore>> = Arc::default();
        let spoken = Arc::clone(&speaking);
        thread::Builder::new()
            .name("static news".to_owned())
            .stack_size(128 << 10)
            .spawn(move || match listening.wait(&spoken) {
                Ok(Some(change)) => {
                    let _the_agent_has_ended = answers.send(Answer::Changed(change));
                }
                Ok(None) => {}
                // The node with the store has ended, which is no failure by itself.
                Err(error) => {
                    debug!("failures of the other nodes are not noticed any more: {error}");
                }
            })?;
        Ok(Self {
            place,
            speaking,
            telling: None,
        })
    }

    /// Tells all other nodes that this one has failed for good, on a thread of its own.
    pub(super) fn announce(&mut self, reason: &str) {
        let place = self.place.clone();
        let speaking = Arc::clone(&self.speaking);
        let word = format!("{} (node rank {})\n{reason}", host::full_name(), place.us);
        let telling = thread::Builder::new()
            .name("static news".to_owned())
            .spawn(move || {
                let others = (0..place.nodes).filter(|node| *node != place.us);
                if let Err(error) = place.write(&speaking, others, &word) {
                    warn!("the other nodes could not be told of the failure here: {error}");
                }
            });
        self.telling = telling.ok();
    }

    /// Waits until all is announced, and ends the waiting for failures. May take a few seconds.
    pub(super) fn end(self) {
        if let Some(telling) = self.telling {
            let _ = telling.join();
        }
        let us = [self.place.us].into_iter();
        if let Err(error) = self.place.write(&self.speaking, us, "") {
            debug!("the store has ended before this node: {error}");
        }
    }
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
