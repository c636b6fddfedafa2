//! Noticing changes of a state in a store.
//!
//! A file tells by itself. A TCP store does not, and agents of torchelastic cannot be made to: they
//! are noticed by looking once a second. But our agents, after a write that others wait for, also
//! let a side key exist for a moment, which all of them wait for on a connection of their own:
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
use crate::dynamic::watch::Watch;

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

/// Watches the side keys of `key`, through a connection of its own.
pub(super) fn watch_side_key(
    store: Box<dyn Store>,
    key: &str,
    place: String,
    notice: Notify,
) -> Option<Watch> {
    let key = side_key(key);
    start(store.breaker(), place, notice, move |over, notice| {
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
pub(super) fn watch_file(
    store: Arc<FileStore>,
    key: &str,
    place: String,
    notice: Notify,
) -> Option<Watch> {
    let key = key.to_owned();
    start(None, place, notice, move |over, notice| {
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
) -> Option<Watch> {
    Watch::start(breaker, move |over| {
        if let Err(error) = watch(over, &notice)
            && !over.load(Ordering::Relaxed)
        {
            notice(Notice::Lost(RendezvousError::of_c10d_store(error, &place)));
        }
    })
    .inspect_err(|error| tracing::warn!(%error, "cannot watch the rendezvous"))
    .ok()
}
