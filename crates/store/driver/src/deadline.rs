//! Time limits of blocking calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Default timeout of waiting operations.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// The end of one blocking call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    /// `None` if the clock cannot express the end: the call has no limit.
    end: Option<Instant>,
}

impl Deadline {
    /// Returns the end of a call that begins now.
    pub(crate) fn after(limit: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            end: started.checked_add(limit),
        }
    }

    /// Returns the time left; zero if the end has passed.
    /// `None` if there is no limit.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.end
            .map(|end| end.saturating_duration_since(Instant::now()))
    }

    /// `true` if the end has come.
    pub(crate) fn has_passed(&self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }

    /// Returns the duration of the call until now.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// The timeout of a store object, in whole milliseconds.
/// Any thread can set and read it.
#[derive(Debug)]
pub(crate) struct SharedTimeout(AtomicU64);

impl Default for SharedTimeout {
    fn default() -> Self {
        Self::new(DEFAULT_TIMEOUT)
    }
}

impl SharedTimeout {
    /// Creates a timeout, cut to whole milliseconds.
    pub(crate) fn new(timeout: Duration) -> Self {
        let shared = Self(AtomicU64::new(0));
        shared.set(timeout);
        shared
    }

    /// Changes the timeout.
    pub(crate) fn set(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    /// Returns the timeout.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
