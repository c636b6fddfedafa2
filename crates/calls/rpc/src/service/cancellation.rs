//! How a function learns that nobody waits for its result any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Notify;

/// Becomes true once: when the caller cancels, gives up at its deadline or is lost, or when the
/// agent stops.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cancelled: AtomicBool,
    fired: Notify,
    until: Option<Instant>,
}

impl Cancellation {
    /// Whether the result is of no use any more.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
            || self.0.until.is_some_and(|until| until <= Instant::now())
    }

    /// Returns when that is so.
    pub async fn cancelled(&self) {
        let fired = self.0.fired.notified();
        tokio::pin!(fired);
        // Enlisted before the look, so that a cancellation between the two is not missed.
        fired.as_mut().enable();
        if !self.is_cancelled() {
            fired.await;
        }
    }

    /// One that becomes true at this time by itself.
    pub(crate) fn until(until: Option<Instant>) -> Self {
        Self(Arc::new(Inner {
            until,
            ..Inner::default()
        }))
    }

    pub(crate) fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.0.fired.notify_waiters();
    }
}
