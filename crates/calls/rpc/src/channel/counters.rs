//! What an agent counts of itself.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::payload::Answer;

/// Counts since the agent was started.
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

    /// A function has taken its first step and has to wait.
    pub(crate) fn runs(&self) {
        self.running.fetch_add(1, Ordering::Relaxed);
    }

    /// A function that had to wait is over.
    pub(crate) fn ran(&self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn connected(&self) {
        self.connected.fetch_add(1, Ordering::Relaxed);
    }
}
