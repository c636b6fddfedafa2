//! The store of a round.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdzv_store::{Store, StoreError};

/// The store that the agents of a round share: torchelastic's `WorkerGroup.store`.
///
/// It is the one that the rendezvous has returned, with a key space of the round's own: what was
/// set in an earlier round is not there. Agents use the keys below `torchelastic/` in it. On one
/// node without a rendezvous it is in the memory of the agent's process. The workers' store is
/// another one; its place is [`StoreInfo`](crate::api::StoreInfo).
///
/// A handle costs nothing until [`RoundStore::connect`] is called; clones share one connection.
#[derive(Debug, Clone)]
pub struct RoundStore {
    connections: Arc<Mutex<Connections>>,
}

/// Each is made at its first use: a node is in its round although the server may be gone again.
#[derive(Debug)]
struct Connections {
    /// The connection of the rendezvous, on which nothing waits. None when the round is over: a handle that is still held does
    /// not keep the server waiting.
    source: Option<Arc<dyn Store>>,
    of_agent: Option<Arc<dyn Store>>,
    of_others: Option<Arc<dyn Store>>,
}

impl RoundStore {
    pub(crate) fn new(source: Arc<dyn Store>) -> Self {
        Self {
            connections: Arc::new(Mutex::new(Connections {
                source: Some(source),
                of_agent: None,
                of_others: None,
            })),
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
    /// If the server of the store is gone or does not answer within the timeout of the store, or
    /// the round is over and this is the first call.
    pub fn connect(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.connection(|connections| &mut connections.of_others)
    }

    /// The connection of the agent, for its threads: it is made by the first call. Nobody else may wait in it.
    pub(super) fn of_agent(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.connection(|connections| &mut connections.of_agent)
    }

    /// A connection of its own for the caller, which does not end with the round.
    pub(super) fn apart(&self) -> Result<Box<dyn Store>, StoreError> {
        let source = self.lock().source.clone();
        let is_over =
            || StoreError::Argument("the round is over, and its store with it".to_owned());
        source.ok_or_else(is_over)?.try_clone()
    }

    fn connection(
        &self,
        which: impl Fn(&mut Connections) -> &mut Option<Arc<dyn Store>>,
    ) -> Result<Arc<dyn Store>, StoreError> {
        if let Some(store) = which(&mut self.lock()) {
            return Ok(Arc::clone(store));
        }
        // Not under the lock, which the agent may be waiting for.
        let made = Arc::from(self.apart()?);
        let mut connections = self.lock();
        let store = Arc::clone(which(&mut connections).get_or_insert(made));
        if connections.source.is_none() {
            break_off(&*store);
        }
        Ok(store)
    }

    /// Ends all connections, because the round is over. A server is not to wait for them.
    pub(super) fn end(&self) {
        let mut connections = self.lock();
        connections.source = None;
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
