//! What has happened in this process, and how often: functions write it down, and others wait for it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// A count for each thing.
#[derive(Default)]
pub(crate) struct EventCounts {
    counts: Mutex<BTreeMap<String, u64>>,
    /// For threads that wait.
    changed: Condvar,
    /// For async functions that wait.
    said: Notify,
}

impl EventCounts {
    /// It has happened once more.
    pub(crate) fn add(&self, what: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.to_owned()).or_default() += 1;
        drop(counts);
        self.changed.notify_all();
        self.said.notify_waiters();
    }

    /// How often it has happened.
    pub(crate) fn count(&self, what: &str) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(what).copied().unwrap_or(0)
    }

    /// Waits until it has happened so often, or the time is over; says how often it has.
    pub(crate) fn wait_blocking(&self, what: &str, times: u64, within: Duration) -> u64 {
        let few = |counts: &mut BTreeMap<String, u64>| counts.get(what).unwrap_or(&0) < &times;
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(counts, within, few);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.count(what)
    }

    /// Waits until it has happened so often.
    pub(crate) async fn wait(&self, what: &str, times: u64) {
        loop {
            let said = self.said.notified();
            tokio::pin!(said);
            // Enlisted before the look, so that nothing between the two is missed.
            said.as_mut().enable();
            if self.count(what) >= times {
                return;
            }
            said.await;
        }
    }
}
