//! Messages to a thread that sleeps in `poll` or `epoll_wait`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, TryRecvError};

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd that wakes the thread that polls it.
/// The descriptor is readable from [`wake`](Self::wake) until [`drain`](Self::drain).
#[derive(Debug)]
pub struct Waker(OwnedFd);

impl Waker {
    /// Creates a waker that is not readable.
    ///
    /// # Errors
    ///
    /// Returns the system's error if no descriptors are left.
    pub fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(eventfd(0, flags)?))
    }

    /// Makes the descriptor readable.
    pub fn wake(&self) {
        // The write fails only if the counter is full. In this case, the descriptor is readable
        // already.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable until the next wake-up.
    /// A thread must drain first and check for work afterwards, so that no wake-up is lost.
    pub fn drain(&self) {
        let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl std::task::Wake for Waker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Self::wake(self);
    }
}

/// The receiving end of a channel whose receiver polls.
/// Its descriptor becomes readable when a message arrives or a [`Sender`] is dropped.
#[derive(Debug)]
pub struct Mailbox<T> {
    messages: mpsc::Receiver<T>,
    waker: Arc<Waker>,
}

/// The sending end of a [`Mailbox`], which never blocks.
/// Dropping the sender wakes the receiver.
pub struct Sender<T> {
    // This field is dropped before the waker. When the last sender wakes the receiver, the receiver
    // therefore finds the channel disconnected.
    messages: mpsc::Sender<T>,
    waker: WakeOnDrop,
}

/// Creates a channel whose receiver polls.
///
/// # Errors
///
/// Returns the system's error if no descriptors are left.
pub fn mailbox<T>() -> io::Result<(Sender<T>, Mailbox<T>)> {
    let waker = Arc::new(Waker::new()?);
    let (sender, receiver) = mpsc::channel();
    let mailbox = Mailbox {
        messages: receiver,
        waker: Arc::clone(&waker),
    };
    let sender = Sender {
        messages: sender,
        waker: WakeOnDrop(waker),
    };
    Ok((sender, mailbox))
}

impl<T> Mailbox<T> {
    /// Makes the descriptor unreadable until the next message or dropped sender.
    /// Call this before taking messages.
    pub fn drain(&self) {
        self.waker.drain();
    }

    /// Returns the next message, without waiting.
    ///
    /// # Errors
    ///
    /// Returns [`TryRecvError::Empty`] if no message is available, or
    /// [`TryRecvError::Disconnected`] if all senders were dropped and all messages were taken.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.messages.try_recv()
    }
}

impl<T> AsFd for Mailbox<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waker.as_fd()
    }
}

impl<T> Sender<T> {
    /// Sends a message and wakes the receiver.
    /// The message is dropped if there is no receiver.
    pub fn send(&self, message: T) {
        let _ = self.messages.send(message);
        self.waker.0.wake();
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            waker: WakeOnDrop(Arc::clone(&self.waker.0)),
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Sender")
    }
}

struct WakeOnDrop(Arc<Waker>);

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_readable;

    #[test]
    fn orders_ring_and_so_does_their_end() {
        let (sender, mailbox) = mailbox().unwrap();
        assert!(!is_readable(&mailbox));
        sender.send(1);
        sender.send(2);
        assert!(is_readable(&mailbox));
        mailbox.drain();
        assert!(!is_readable(&mailbox));
        assert_eq!((mailbox.try_recv(), mailbox.try_recv()), (Ok(1), Ok(2)));
        assert_eq!(mailbox.try_recv(), Err(TryRecvError::Empty));
        drop(sender);
        assert!(is_readable(&mailbox));
        assert_eq!(mailbox.try_recv(), Err(TryRecvError::Disconnected));
    }

    #[test]
    fn a_waker_that_is_full_stays_readable() {
        let waker = Arc::new(Waker::new().unwrap());
        rustix::io::write(&*waker, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        std::task::Waker::from(Arc::clone(&waker)).wake();
        assert!(is_readable(&*waker));
        waker.drain();
        waker.drain();
        assert!(!is_readable(&*waker));
    }
}
