//! Shared state in a store, under torchelastic's key.
//!
//! The value is the pickle in base64, or a sentinel for "no state yet", so that a read never waits.
//! The token is the exact text of the value.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rdzv_core::ident::RunId;
use rdzv_lock::Mutex;
use rdzv_rendezvous_proto::apply::sanitise;
use rdzv_rendezvous_proto::codec::{self, SENTINEL, text};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store::{FileStore, PrefixStore, Store, StoreError, TcpStore};

use super::store_watch::{self, watch_file, watch_side_key};
use crate::RendezvousError;
use crate::dynamic::watch::Watch;
use crate::dynamic::{Notice, SharedState, StateToken, Written};

/// Maximum number of attempts to remove an agent while other writes interfere.
const ATTEMPTS: usize = 16;

#[derive(Debug, Clone)]
pub(super) enum StateMedium {
    Tcp(Arc<TcpStore>),
    File(Arc<FileStore>),
    /// Store that the caller has passed.
    Given(Arc<dyn Store>),
}

impl StateMedium {
    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Tcp(store) => Arc::clone(store) as _,
            Self::File(store) => Arc::clone(store) as _,
            Self::Given(store) => Arc::clone(store),
        }
    }

    fn describe(&self) -> String {
        match self {
            Self::Tcp(store) => {
                let (peer, name) = (store.peer(), store.host());
                if peer.ip().to_string() == name {
                    format!("the c10d store {peer}")
                } else {
                    format!("the c10d store {name}:{} ({peer})", peer.port())
                }
            }
            Self::File(store) => format!("the c10d file {}", store.path().display()),
            Self::Given(store) => format!("the store {store:?}"),
        }
    }
}

/// State of a run in any store, under torchelastic's key and in its format.
///
/// It corresponds to torchelastic's `C10dRendezvousBackend`. To use another store, pass the state
/// to a [`Driver`](crate::dynamic::Driver). [`SharedState::get`] returns the value and its token;
/// [`SharedState::set`] changes them.
pub struct C10dState {
    key: String,
    medium: StateMedium,
    /// Connection for the state, which no wait occupies.
    store: Arc<dyn Store>,
    /// Connection for the keys of rounds, on which callers wait.
    rounds: Mutex<Option<Arc<dyn Store>>>,
    watcher: Option<Watch>,
}

impl fmt::Debug for C10dState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "C10dState({} at {})", self.key, self.endpoint())
    }
}

impl C10dState {
    /// Removes the agent with this process id, on the machine of `me`.
    ///
    /// Returns `true` if it has removed the agent. Many interfering writes can prevent this.
    pub(super) fn remove_agent(
        &mut self,
        me: &NodeDesc,
        settings: &Settings,
        pid: u32,
    ) -> Result<bool, RendezvousError> {
        for _ in 0..ATTEMPTS {
            let Some((pickle, token)) = self.get()? else {
                return Ok(false);
            };
            let Ok(mut state) = codec::decode(&pickle) else {
                return Ok(false);
            };
            let is_it = |node: &NodeDesc, _| node.addr == me.addr && node.pid == i64::from(pid);
            if sanitise(&mut state, me, settings, is_it).is_empty() {
                return Ok(false);
            }
            if self.set(&codec::encode(&state), Some(&token))?.won {
                self.notify()?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Opens the state of a run in `store`.
    ///
    /// The caller must not wait on this connection. The first node writes a sentinel under the key,
    /// so that no node waits for a value.
    ///
    /// # Errors
    ///
    /// Returns an error if the run has no name, or the store does not answer.
    pub fn new(store: Arc<dyn Store>, run_id: &RunId) -> Result<Self, RendezvousError> {
        Self::at(StateMedium::Given(store), run_id)
    }

    pub(super) fn at(medium: StateMedium, run_id: &RunId) -> Result<Self, RendezvousError> {
        if run_id.as_str().is_empty() {
            let text = "The run id must be a non-empty string.";
            return Err(RendezvousError::Argument(text.to_owned()));
        }
        let state = Self {
            key: format!("torch.rendezvous.{run_id}"),
            store: medium.store(),
            medium,
            rounds: Mutex::default(),
            watcher: None,
        };
        state.seed()?;
        Ok(state)
    }

    /// Makes sure that a value exists, and returns it.
    ///
    /// This takes one request. It also recreates a key that has vanished; torchelastic waits in
    /// that case, and then loses all its writes.
    fn seed(&self) -> Result<Bytes, RendezvousError> {
        self.swap(b"", SENTINEL)
    }

    fn swap(&self, expected: &[u8], desired: &[u8]) -> Result<Bytes, RendezvousError> {
        let swapped = self.store.compare_set(&self.key, expected, desired);
        swapped.map_err(|error| self.explain(error))
    }

    fn explain(&self, error: StoreError) -> RendezvousError {
        RendezvousError::of_c10d_store(error, &self.endpoint())
    }

    fn read(&self, value: Bytes) -> Result<Option<(Bytes, StateToken)>, RendezvousError> {
        if value == SENTINEL {
            return Ok(None);
        }
        match text::decode(&value) {
            Ok(pickle) => Ok(Some((Bytes::from(pickle), StateToken(value.to_vec())))),
            Err(error) => Err(RendezvousError::Corrupt {
                what: format!("the state under the key {} is corrupt ({error})", self.key),
                endpoint: self.endpoint(),
            }),
        }
    }
}

impl SharedState for C10dState {
    fn name(&self) -> &str {
        super::C10dRendezvous::NAME
    }

    fn get(&mut self) -> Result<Option<(Bytes, StateToken)>, RendezvousError> {
        self.read(self.seed()?)
    }

    fn set(
        &mut self,
        state: &[u8],
        token: Option<&StateToken>,
    ) -> Result<Written, RendezvousError> {
        let desired = text::encode(state);
        // torchelastic treats a token without bytes as no token.
        let token = token.filter(|token| !token.0.is_empty());
        let expected = token.map_or(SENTINEL, |token| &token.0);
        let held = self.swap(expected, &desired)?;
        let won = held == desired;
        let now = if !won && held == expected {
            // For an absent key, the store returns the expected value.
            self.get()?
        } else {
            self.read(held)?
        };
        Ok(Written { now, won })
    }

    fn watch(
        &mut self,
        notice: Arc<dyn Fn(Notice) + Send + Sync>,
    ) -> Result<bool, RendezvousError> {
        let endpoint = self.endpoint();
        self.watcher = match &self.medium {
            StateMedium::Tcp(store) => {
                let clone = store.try_clone().map_err(|error| self.explain(error))?;
                watch_side_key(clone, &self.key, endpoint, notice)
            }
            StateMedium::Given(store) => {
                let clone = store.try_clone().map_err(|error| self.explain(error))?;
                // A wait that cannot be interrupted would outlive the node.
                match clone.connection().and_then(|it| it.breaker()) {
                    Some(_) => watch_side_key(clone, &self.key, endpoint, notice),
                    None => None,
                }
            }
            StateMedium::File(store) => watch_file(Arc::clone(store), &self.key, endpoint, notice),
        };
        // Without the watch, or with agents that do not notify, polls find the changes.
        Ok(self.watcher.is_some() && matches!(self.medium, StateMedium::File(_)))
    }

    fn notify(&mut self) -> Result<(), RendezvousError> {
        match &self.medium {
            StateMedium::Tcp(_) | StateMedium::Given(_) => {
                store_watch::notify(&*self.store, &self.key).map_err(|error| self.explain(error))
            }
            StateMedium::File(_) => Ok(()),
        }
    }

    fn gives_up_after(&self) -> Duration {
        self.store.timeout()
    }

    fn round_store(&self, round: u64) -> Result<Arc<dyn Store>, RendezvousError> {
        let mut rounds = self.rounds.lock();
        let store = match &*rounds {
            Some(store) => Arc::clone(store),
            None => {
                let clone = self
                    .store
                    .try_clone()
                    .map_err(|error| self.explain(error))?;
                Arc::clone(rounds.insert(Arc::from(clone)))
            }
        };
        Ok(Arc::new(PrefixStore::new(
            format!("{}.{round}", self.key),
            store,
        )))
    }

    fn local_address(&self) -> Option<IpAddr> {
        match &self.medium {
            StateMedium::Tcp(store) => store.local_address(),
            StateMedium::File(_) | StateMedium::Given(_) => None,
        }
    }

    fn endpoint(&self) -> String {
        self.medium.describe()
    }
}
