//! The store of a round.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rdzv_store::{Store, StoreError};

/// Store that the agents of a round share: torchelastic's `WorkerGroup.store`.
///
/// It is the store of the rendezvous with a separate key space for each round: keys of an earlier
/// round do not exist in it. Agents use the keys below `torchelastic/` and `rdzv/`. On one node
/// without a rendezvous, the store is in the memory of the agent's process. The workers have a
/// different store, at [`StoreInfo`](crate::api::StoreInfo). A static rendezvous has only one
/// round, so its keys stay for the whole run. One server there hosts both stores, with different
/// keys.
///
/// A handle opens no connection until [`RoundStore::connect`] is called. Clones share one
/// connection.
#[derive(Debug, Clone)]
pub struct RoundStore {
    connections: Arc<Mutex<Connections>>,
}

/// Connections of a round, each opened at its first use.
/// A node stays in its round even if the server has exited.
#[derive(Debug)]
struct Connections {
    /// Connection of the rendezvous, on which no call waits.
    /// `None` when the round is over, so that a remaining handle does not keep the server waiting.
    source: Option<Arc<dyn Store>>,
    of_agent: Option<Arc<dyn Store>>,
    of_others: Option<Arc<dyn Store>>,
    of_threads: Vec<Weak<dyn Store>>,
}

impl RoundStore {
    pub(crate) fn new(source: Arc<dyn Store>) -> Self {
        Self {
            connections: Arc::new(Mutex::new(Connections {
                source: Some(source),
                of_agent: None,
                of_others: None,
                of_threads: Vec::new(),
            })),
        }
    }

    /// Returns a connection separate from the agent's; the first call opens it.
    ///
    /// The connection ends with the round: its waits then return, and every call fails. (A store in
    /// memory stays.)
    ///
    /// A wait in the store blocks the waiting thread. On the thread of the agent (in a
    /// [`WorkerSupervisor`](crate::api::WorkerSupervisor)) this delays the agent. Set a short
    /// [timeout](Store::set_timeout), or use another thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the server of the store has exited, or if it does not answer within the
    /// timeout of the store. The first call also returns an error if the round is over.
    pub fn connect(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.connection(|connections| &mut connections.of_others)
    }

    /// Returns the connection of the agent's threads; the first call opens it.
    /// No other code may wait in it.
    pub(crate) fn of_agent(&self) -> Result<Arc<dyn Store>, StoreError> {
        self.connection(|connections| &mut connections.of_agent)
    }

    /// Returns a separate connection for the caller, which outlives the round.
    pub(crate) fn apart(&self) -> Result<Box<dyn Store>, StoreError> {
        let source = self.lock().source.clone();
        let is_over =
            || StoreError::Argument("the round has ended, and its store is closed".to_owned());
        source.ok_or_else(is_over)?.try_clone()
    }

    /// Returns a connection for one thread of the agent, which ends with the round.
    pub(crate) fn of_thread(&self) -> Result<Arc<dyn Store>, StoreError> {
        let store: Arc<dyn Store> = Arc::from(self.apart()?);
        let mut connections = self.lock();
        connections
            .of_threads
            .retain(|known| known.strong_count() > 0);
        connections.of_threads.push(Arc::downgrade(&store));
        if connections.source.is_none() {
            break_off(&*store);
        }
        Ok(store)
    }

    fn connection(
        &self,
        which: impl Fn(&mut Connections) -> &mut Option<Arc<dyn Store>>,
    ) -> Result<Arc<dyn Store>, StoreError> {
        if let Some(store) = which(&mut self.lock()) {
            return Ok(Arc::clone(store));
        }
        // The lock is not held here, because the agent may be waiting for it.
        let made = Arc::from(self.apart()?);
        let mut connections = self.lock();
        let store = Arc::clone(which(&mut connections).get_or_insert(made));
        if connections.source.is_none() {
            break_off(&*store);
        }
        Ok(store)
    }

    /// Ends all connections, because the round is over.
    /// A server that shuts down then does not wait for them.
    pub(crate) fn end(&self) {
        let mut connections = self.lock();
        connections.source = None;
        for store in [&connections.of_agent, &connections.of_others]
            .into_iter()
            .flatten()
        {
            break_off(&**store);
        }
        for store in connections.of_threads.iter().filter_map(Weak::upgrade) {
            break_off(&*store);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Aborts the call on a handle, and makes later calls fail.
pub(crate) fn break_off(store: &dyn Store) {
    if let Some(end) = store.connection().and_then(|it| it.breaker()) {
        end();
    }
}
