//! Time limits of blocking calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Default timeout of waiting operations.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The end of one blocking call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    /// `None` if the limit is beyond what the clock can express: permanently.
    end: Option<Instant>,
}

impl Deadline {
    /// The end of a call that begins now.
    pub(crate) fn after(limit: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            end: started.checked_add(limit),
        }
    }

    /// The time left; zero if the end has passed, `None` if there is none.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.end
            .map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether the end has come.
    pub(crate) fn has_passed(&self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }

    /// Duration of the call so far.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The timeout of a store object: set and read from any thread, in whole milliseconds.
#[derive(Debug)]
pub(crate) struct SharedTimeout(AtomicU64);

impl Default for SharedTimeout {
    fn default() -> Self {
        Self::new(DEFAULT_TIMEOUT)
    }
}

impl SharedTimeout {
    /// A timeout, cut to whole milliseconds.
    pub(crate) fn new(timeout: Duration) -> Self {
        let shared = Self(AtomicU64::new(0));
        shared.set(timeout);
        shared
    }

    /// Changes it.
    pub(crate) fn set(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    /// Reads it.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
