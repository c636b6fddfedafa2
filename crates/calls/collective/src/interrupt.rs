//! End of all operations of a group at the request of another thread.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rdzv_event::Waker;

/// Request to end all operations.
///
/// The request stays raised, and its descriptor stays readable.
#[derive(Debug)]
pub(crate) struct Interrupt {
    raised: AtomicBool,
    /// Wakes the waiting threads; never drained.
    waker: Waker,
}

impl Interrupt {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            raised: AtomicBool::new(false),
            waker: Waker::new()?,
        })
    }

    pub(crate) fn raise(&self) {
        self.raised.store(true, Ordering::Release);
        self.waker.wake();
    }

    pub(crate) fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}

impl AsFd for Interrupt {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

/// Time between two calls of the function of a [`Watch`].
const INTERVAL: Duration = Duration::from_millis(100);

/// Function that the waiting thread calls, and that can end the operation.
pub(crate) struct Watch {
    ends: Box<dyn FnMut() -> bool + Send>,
    called: Instant,
}

impl Watch {
    pub(crate) fn new(ends: impl FnMut() -> bool + Send + 'static) -> Self {
        Self {
            ends: Box::new(ends),
            called: Instant::now(),
        }
    }

    /// Returns the time until the next call is due, at most `left`.
    pub(crate) fn slice(&self, left: Duration) -> Duration {
        left.min(INTERVAL.saturating_sub(self.called.elapsed()))
    }

    /// Calls the function if a call is due; `true` if the operation must end.
    pub(crate) fn ends(&mut self) -> bool {
        if self.called.elapsed() < INTERVAL {
            return false;
        }
        self.called = Instant::now();
        (self.ends)()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Watch")
    }
}
