//! Noticing changes of a state in a store.
//!
//! A file tells by itself. A TCP store does not, and agents of the reference cannot be made to: they
//! are noticed by looking once a second. But our agents, after a write that others wait for, also set
//! a side key, and all of them wait for the next one on a connection of their own:
//!
//! ```text
//!   who changes:   n = add ⟨key⟩.rdzv/changes 1,  set ⟨key⟩.rdzv/changed/n
//!   who watches:   n = add ⟨key⟩.rdzv/changes 0,  wait ⟨key⟩.rdzv/changed/(n + 1)
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rdzv_store::{Breaker, FileStore, Store, StoreError};

use super::explain::explain;
use crate::dynamic::Notice;

/// How many side keys are kept for watchers that are slow to begin with the next wait. One that is
/// even slower finds the change by looking.
const KEPT: i64 = 4;

/// How long one wait for a change of a file lasts.
const SLICE: Duration = Duration::from_secs(1);

type Notify = Arc<dyn Fn(Notice) + Send + Sync>;

/// Tells all who watch the state under `key`.
pub(super) fn bump(store: &dyn Store, key: &str) -> Result<(), StoreError> {
    let number = store.add(&counter(key), 1)?;
    store.set(&side_key(key, number), b"1")?;
    if number > KEPT {
        store.delete_key(&side_key(key, number - KEPT))?;
    }
    Ok(())
}

fn counter(key: &str) -> String {
    format!("{key}.rdzv/changes")
}

fn side_key(key: &str, number: i64) -> String {
    format!("{key}.rdzv/changed/{number}")
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
        let key = key.to_owned();
        Self::start(breaker, place, notice, move |over, notice| {
            while !over.load(Ordering::Relaxed) {
                let number = store.add(&counter(&key), 0)?;
                store.wait(&[&side_key(&key, number + 1)], Some(Duration::MAX))?;
                notice(Notice::Changed);
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
                    notice(Notice::Lost(explain(error, &place)));
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
