//! Events in this process and their counts; functions add them, others wait.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

/// Counts by the name of the event.
#[derive(Default)]
pub(crate) struct EventCounts {
    counts: Mutex<BTreeMap<String, u64>>,
    /// Condition for threads that wait.
    changed: Condvar,
    /// Notification for async functions that wait.
    said: Notify,
}

impl EventCounts {
    /// Counts an event.
    pub(crate) fn add(&self, what: &str) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry(what.to_owned()).or_default() += 1;
        drop(counts);
        self.changed.notify_all();
        self.said.notify_waiters();
    }

    /// Returns the count of an event.
    pub(crate) fn count(&self, what: &str) -> u64 {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(what).copied().unwrap_or(0)
    }

    /// Waits until an event has this count or the time is over; returns the count.
    pub(crate) fn wait_blocking(&self, what: &str, times: u64, within: Duration) -> u64 {
        let few = |counts: &mut BTreeMap<String, u64>| counts.get(what).unwrap_or(&0) < &times;
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(counts, within, few);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
        self.count(what)
    }

    /// Waits until an event has this count.
    pub(crate) async fn wait(&self, what: &str, times: u64) {
        loop {
            let said = self.said.notified();
            tokio::pin!(said);
            // Registered before the check, so that an event between the two is not missed.
            said.as_mut().enable();
            if self.count(what) >= times {
                return;
            }
            said.await;
        }
    }
}
