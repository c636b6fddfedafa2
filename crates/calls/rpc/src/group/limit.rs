//! How long something may take.

use std::time::{Duration, Instant};

/// A deadline that knows when it began.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limit {
    started: Instant,
    limit: Duration,
}

impl Limit {
    /// So long from now on.
    pub(super) fn of(limit: Duration) -> Self {
        Self {
            started: Instant::now(),
            limit,
        }
    }

    /// How much is left; zero if it is over.
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
