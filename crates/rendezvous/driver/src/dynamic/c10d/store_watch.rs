//! Detection of changes to a state in a store.
//!
//! A file reports changes. A TCP store does not, so this agent polls at least once a second, which
//! also shows the changes of torchelastic agents. An agent of rdzv additionally creates a side key
//! for a moment after each write that others wait for. The other agents wait for the side key on a
//! separate connection:
//!
//! ```text
//!   writer:    set ⟨key⟩.rdzv/changed, then delete ⟨key⟩.rdzv/changed
//!   watcher:   wait ⟨key⟩.rdzv/changed, repeatedly
//! ```
//!
//! The store therefore does not keep the side key. A watcher that is between two waits at that
//! moment finds the change at the next poll.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdzv_store::{Breaker, FileStore, Store, StoreError};

use crate::RendezvousError;
use crate::dynamic::Notice;
use crate::dynamic::watch::Watch;

/// Time within which a side key that exists again is probably a leftover.
///
/// The agent that created the key exited before it could delete it.
const SOON: Duration = Duration::from_millis(50);

/// Duration of one wait for a change of a file.
const SLICE: Duration = Duration::from_secs(1);

type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// Notifies all watchers of the state under `key`.
pub(super) fn notify(store: &dyn Store, key: &str) -> Result<(), StoreError> {
    let key = side_key(key);
    store.set(&key, b"1")?;
    store.delete_key(&key)?;
    Ok(())
}

fn side_key(key: &str) -> String {
    format!("{key}.rdzv/changed")
}

/// Watches the side key of `key` through a separate connection.
pub(super) fn watch_side_key(
    store: Box<dyn Store>,
    key: &str,
    endpoint: String,
    notice: Notify,
) -> Option<Watch> {
    let key = side_key(key);
    start(
        store.connection().and_then(|it| it.breaker()),
        endpoint,
        notice,
        move |over, notice| {
            while !over.load(Ordering::Relaxed) {
                let began = Instant::now();
                store.wait(&[&key], Some(Duration::MAX))?;
                notice(Notice::Changed);
                if began.elapsed() < SOON {
                    // Otherwise this loop would never wait.
                    store.delete_key(&key)?;
                }
            }
            Ok(())
        },
    )
}

/// Watches the value in a file.
pub(super) fn watch_file(
    store: Arc<FileStore>,
    key: &str,
    endpoint: String,
    notice: Notify,
) -> Option<Watch> {
    let key = key.to_owned();
    start(None, endpoint, notice, move |over, notice| {
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
    endpoint: String,
    notice: Notify,
    watch: impl FnOnce(&AtomicBool, &Notify) -> Result<(), StoreError> + Send + 'static,
) -> Option<Watch> {
    Watch::start(breaker, move |over| {
        if let Err(error) = watch(over, &notice)
            && !over.load(Ordering::Relaxed)
        {
            notice(Notice::Lost(RendezvousError::of_c10d_store(
                error, &endpoint,
            )));
        }
    })
    .inspect_err(|error| tracing::warn!(%error, "cannot watch the rendezvous"))
    .ok()
}
