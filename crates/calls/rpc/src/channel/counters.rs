//! Counters that an agent keeps about its calls and connections.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::payload::Answer;

/// Counts since the start of the agent; `running` is the current number.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) made: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) served: AtomicU64,
    pub(crate) running: AtomicU64,
    pub(crate) connected: AtomicU64,
}

impl Counters {
    pub(crate) fn made(&self) {
        self.made.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn answered(&self, answer: &Answer) {
        if answer.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn served(&self) {
        self.served.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a function that was accepted and is not complete.
    pub(crate) fn runs(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a function that [`runs`](Self::runs) counted and that has ended.
    pub(crate) fn ran(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }
}
