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
    /// The agent's own connection. Nobody else may wait in it.
    of_agent: Arc<dyn Store>,
    of_others: Arc<Mutex<Others>>,
}

/// The connection of everybody else.
#[derive(Debug, Default)]
struct Others {
    store: Option<Arc<dyn Store>>,
    ended: bool,
}

impl RoundStore {
    pub(crate) fn new(of_agent: Arc<dyn Store>) -> Self {
        Self {
            of_agent,
            of_others: Arc::default(),
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
        if let Some(store) = &self.lock().store {
            return Ok(Arc::clone(store));
        }
        // Not under the lock, which the agent may be waiting for.
        let made = Arc::from(self.of_agent.try_clone()?);
        let mut others = self.lock();
        let store = Arc::clone(others.store.get_or_insert(made));
        if others.ended {
            break_off(&*store);
        }
        Ok(store)
    }

    /// The connection of the agent.
    pub(super) fn of_agent(&self) -> &Arc<dyn Store> {
        &self.of_agent
    }

    /// Ends all connections, because the round is over. A server is not to wait for them.
    pub(super) fn end(&self) {
        break_off(&*self.of_agent);
        let mut others = self.lock();
        others.ended = true;
        if let Some(store) = &others.store {
            break_off(&**store);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Others> {
        self.of_others
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn break_off(store: &dyn Store) {
    if let Some(end) = store.breaker() {
        end();
    }
}
