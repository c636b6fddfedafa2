//! The store of a round.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdzv_store::{Store, StoreError};

/// The store that the agents of a round share: torchelastic's `WorkerGroup.store`.
///
/// It is the one that the rendezvous has returned, with a key space of the round's own: what was set in an
/// earlier round is not there. Agents use the keys below `torchelastic/` in it. On one node without a
/// rendezvous it is in the memory of the agent's process. The workers' store is another one; its place is
/// [`StoreInfo`](crate::api::StoreInfo).
///
/// A handle costs nothing until [`RoundStore::connect`] is called; clones share one connection.
#[derive(Debug, Clone)]
pub struct RoundStore {
    /// The rendezvous' own. Nobody waits in it.
    source: Arc<dyn Store>,
    connections: Arc<Mutex<Connections>>,
}

/// Each is made at its first use: a node is in its round although the server may be gone again.
#[derive(Debug, Default)]
struct Connections {
    of_agent: Option<Arc<dyn Store>>,
    of_others: Option<Arc<dyn Store>>,
    ended: bool,
}

impl RoundStore {
    pub(crate) fn new(source: Arc<dyn Store>) -> Self {
        Self {
            source,
            connections: Arc::default(),
        }
    }

    /// A connection besides the agent's, made by the first call. It ends with the round: then waits in it are over,
    /// and every call fails. (In memory it stays.)
    ///
    /// A wait in the store blocks the thread that waits. On the thread of the agent (in a
    /// [`WorkerSupervisor`](crate::api::WorkerSupervisor)) that holds up the agent: set a short
    /// [timeout](Store::set_timeout), or use another thread.
    ///
    /// # Errors
    ///
    /// If the server of the store is gone or does not answer within the timeout of the store.
    pub fn connect(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.connection(|connections| &mut connections.of_others)
    }

    /// The connection of the agent, for its threads: it is made by the first call. Nobody else may wait in it.
    pub(super) fn of_agent(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.connection(|connections| &mut connections.of_agent)
    }

    /// A connection of its own for the caller, which does not end with the round.
    pub(super) fn apart(&self) -> Result<Box<dyn Store>, StoreError> {
        self.source.try_clone()
    }

    fn connection(
        &self,
        which: impl Fn(&mut Connections) -> &mut Option<Arc<dyn Store>>,
    ) -> Result<Arc<dyn Store>, StoreError> {
        if let Some(store) = which(&mut self.lock()) {
            return Ok(Arc::clone(store));
        }
        // Not under the lock, which the agent may be waiting for.
        let made = Arc::from(self.source.try_clone()?);
        let mut connections = self.lock();
        let store = Arc::clone(which(&mut connections).get_or_insert(made));
        if connections.ended {
            break_off(&*store);
        }
        Ok(store)
    }

    /// Ends all connections, because the round is over. A server is not to wait for them.
    pub(super) fn end(&self) {
        let mut connections = self.lock();
        connections.ended = true;
        for store in [&connections.of_agent, &connections.of_others]
            .into_iter()
            .flatten()
        {
            break_off(&**store);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn break_off(store: &dyn Store) {
    if let Some(end) = store.breaker() {
        end();
    }
}
