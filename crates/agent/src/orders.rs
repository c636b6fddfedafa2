//! What the agent says to a thread of its own that sleeps in `poll`.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use rustix::event::{EventfdFlags, eventfd};

/// The agent's end. The thread is to end when this is dropped.
pub(crate) struct Orders<T> {
    sender: Option<Sender<T>>,
    bell: Arc<OwnedFd>,
}

/// The thread's end.
pub(crate) struct Received<T> {
    receiver: Receiver<T>,
    bell: Arc<OwnedFd>,
}

/// Both ends.
pub(crate) fn orders<T>() -> io::Result<(Orders<T>, Received<T>)> {
    let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
    let (sender, receiver) = channel();
    let received = Received {
        receiver,
        bell: Arc::clone(&bell),
    };
    let sender = Some(sender);
    Ok((Orders { sender, bell }, received))
}

impl<T> fmt::Debug for Orders<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Orders")
    }
}

impl<T> Orders<T> {
    pub(crate) fn give(&self, order: T) {
        if let Some(sender) = &self.sender {
            // The thread ends only after this end is gone.
            let _ = sender.send(order);
        }
        self.ring();
    }

    fn ring(&self) {
        // It fails only if the count is at its end, and then it rings anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }
}

impl<T> Drop for Orders<T> {
    fn drop(&mut self) {
        // First the end, then the bell: who is woken has to find it.
        self.sender = None;
        self.ring();
    }
}

impl<T> Received<T> {
    /// Readable when there is an order, or an end of them.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The bell was heard; orders are looked at after this.
    pub(crate) fn hush(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
    }

    /// The next order that is there.
    pub(crate) fn next(&self) -> Result<T, TryRecvError> {
        self.receiver.try_recv()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn rings<T>(received: &Received<T>) -> bool {
        let mut waited = [PollFd::from_borrowed_fd(received.bell(), PollFlags::IN)];
        poll(&mut waited, Some(&Timespec::default())) == Ok(1)
    }

    #[test]
    fn orders_ring_and_so_does_their_end() {
        let (orders, received) = orders().unwrap();
        assert!(!rings(&received));
        orders.give(1);
        orders.give(2);
        assert!(rings(&received));
        received.hush();
        assert!(!rings(&received));
        assert_eq!((received.next(), received.next()), (Ok(1), Ok(2)));
        assert_eq!(received.next(), Err(TryRecvError::Empty));
        drop(orders);
        assert!(rings(&received));
        assert_eq!(received.next(), Err(TryRecvError::Disconnected));
    }
}
