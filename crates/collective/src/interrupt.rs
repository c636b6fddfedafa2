//! The end of all operations of a group, ordered by another thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rdzv_event::Waker;

/// Permanent once it is raised. As a descriptor it is readable then.
#[derive(Debug)]
pub(crate) struct Interrupt {
    raised: AtomicBool,
    /// Never drained.
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
