//! Time limits.

use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    started: Instant,
    limit: Duration,
}

impl Limit {
    pub(super) fn of(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit,
        }
    }

    /// Returns the remaining time; zero after the deadline.
    pub(super) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.started.elapsed())
    }

    pub(super) fn is_over(&self) -> bool {
        self.left().is_zero()
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }
}
