//! Cancellation of a function whose result is no longer needed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Notify;

/// Flag that is set once the result of a function is no longer needed.
///
/// The flag is set when the caller cancels the call, reaches its deadline or is lost, or when the
/// agent stops. For a function that [`RpcAgent::remote`](crate::RpcAgent::remote) calls, only the
/// timeout of that call sets the flag.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    cancelled: AtomicBool,
    fired: Notify,
    deadline: Option<Instant>,
}

impl Cancellation {
    /// `true` if the result is no longer needed.
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.load(Ordering::Acquire)
            || self
                .0
                .deadline
                .is_some_and(|deadline| deadline <= Instant::now())
    }

    /// Waits until the flag is set.
    pub async fn cancelled(&self) {
        let fired = self.0.fired.notified();
        tokio::pin!(fired);
        // Registered before the check, so that a cancellation between the two is not missed.
        fired.as_mut().enable();
        if !self.is_cancelled() {
            fired.await;
        }
    }

    /// Creates a flag that is set automatically at this time.
    pub(crate) fn deadline(deadline: Option<Instant>) -> Self {
        Self(Arc::new(Inner {
            deadline,
            ..Inner::default()
        }))
    }

    pub(crate) fn cancel(&self) {
        self.0.cancelled.store(true, Ordering::Release);
        self.0.fired.notify_waiters();
    }
}
