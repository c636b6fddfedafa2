//! Noticing changes of a state in a store.
//!
//! A file tells by itself. A TCP store does not, and agents of torchelastic cannot be made to: they
//! are noticed by looking once a second. But our agents, after a write that others wait for, also let
//! a side key exist for a moment, which all of them wait for on a connection of their own:
//!
//! ```text
//!   who changes:   set ⟨key⟩.rdzv/changed,  delete ⟨key⟩.rdzv/changed
//!   who watches:   wait ⟨key⟩.rdzv/changed,  again and again
//! ```
//!
//! So the store holds no key that torchelastic would not leave there. A watcher that is between two
//! waits just then finds the change by looking.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdzv_store::{Breaker, FileStore, Store, StoreError};

use crate::RendezvousError;
use crate::dynamic::Notice;

/// A side key that is there again within this time has probably been left by an agent that ended
/// before it could delete it.
const SOON: Duration = Duration::from_millis(50);

/// How long one wait for a change of a file lasts.
const SLICE: Duration = Duration::from_secs(1);

type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// Tells all who watch the state under `key`.
pub(super) fn notify(store: &dyn Store, key: &str) -> Result<(), StoreError> {
    let key = side_key(key);
    store.set(&key, b"1")?;
    store.delete_key(&key)?;
    Ok(())
}

fn side_key(key: &str) -> String {
    format!("{key}.rdzv/changed")
}

/// A thread that watches until this is dropped.
pub(super) struct Watcher {
    over: Arc<AtomicBool>,
    breaker: Option<Breaker>,
}

impl Watcher {
    /// Watches the side keys of `key`, through a connection of its own.
    pub(super) fn of_side_key(
        store: Box<dyn Store>,
        key: &str,
        place: String,
        notice: Notify,
    ) -> Option<Self> {
        let breaker = store.breaker();
        let key = side_key(key);
        Self::start(breaker, place, notice, move |over, notice| {
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                store.wait(&[&key], Some(Duration::MAX))?;
                notice(Notice::Changed);
                if began.elapsed() < SOON {
                    // Or else this would go round and round.
                    store.delete_key(&key)?;
                }
            }
            Ok(())
        })
    }

    /// Watches the value itself, in a file.
    pub(super) fn of_file(
        store: Arc<FileStore>,
        key: &str,
        place: String,
        notice: Notify,
    ) -> Option<Self> {
        let key = key.to_owned();
        Self::start(None, place, notice, move |over, notice| {
            let mut known = Some(store.get(&key)?);
            while !over.load(Ordering::Relaxed) {
                match store.wait_for_change(&key, known.as_deref(), SLICE) {
                    Ok(now) => {
                        known = now;
                        notice(Notice::Changed);
                    }
                    Err(StoreError::WaitTimeout { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        })
    }

    fn start(
        breaker: Option<Breaker>,
        place: String,
        notice: Notify,
        watch: impl FnOnce(&AtomicBool, &Notify) -> Result<(), StoreError> + Send + 'static,
    ) -> Option<Self> {
        let over = Arc::new(AtomicBool::new(false));
        let watched = Arc::clone(&over);
        let thread = std::thread::Builder::new()
            .name("rdzv-watch".to_owned())
            .spawn(move || {
                if let Err(error) = watch(&watched, &notice)
                    && !watched.load(Ordering::Relaxed)
                {
                    notice(Notice::Lost(RendezvousError::of_c10d_store(error, &place)));
                }
            });
        thread
            .inspect_err(|error| tracing::warn!(%error, "cannot watch the rendezvous"))
            .ok()?;
        Some(Self { over, breaker })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(breaker) = &self.breaker {
            breaker();
        }
    }
}
