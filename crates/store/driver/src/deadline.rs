//! Time limits for blocking calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    started: Instant,
    /// `None` if the clock cannot represent the deadline: the call has no limit.
    end: Option<Instant>,
}

impl Deadline {
    /// Returns the deadline for a call that begins now and may take `limit`.
    pub(crate) fn after(limit: Duration) -> Self {
        let started = Instant::now();
        Self {
            started,
            end: started.checked_add(limit),
        }
    }

    /// Returns the remaining time, or zero if the deadline has passed.
    /// Returns `None` if there is no limit.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.end
            .map(|end| end.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn has_passed(&self) -> bool {
        self.remaining() == Some(Duration::ZERO)
    }

    /// Returns the time since the call began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Timeout of a store object, in whole milliseconds.
/// Any thread can set and read it.
#[derive(Debug)]
pub(crate) struct SharedTimeout(AtomicU64);

impl Default for SharedTimeout {
    fn default() -> Self {
        Self::new(DEFAULT_TIMEOUT)
    }
}

impl SharedTimeout {
    /// Creates a timeout, truncated to whole milliseconds.
    pub(crate) fn new(timeout: Duration) -> Self {
        let shared = Self(AtomicU64::new(0));
        shared.set(timeout);
        shared
    }

    pub(crate) fn set(&self, timeout: Duration) {
        let millis = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        self.0.store(millis, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_millis(self.0.load(Ordering::Relaxed))
    }
}
