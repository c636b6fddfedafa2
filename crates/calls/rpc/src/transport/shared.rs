//! Halves of a connection through shared memory.
//!
//! The Unix socket over which the rings were passed stays open. Its end of file shows that the peer
//! has ended, which memory cannot show. Apart from that, only arenas are passed over this socket.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rdzv_event::{EventFlags, Poller};
use rdzv_shm::{Consumer, Leases, Producer, SharedLink};

use super::socket::close;
use super::{ReadHalf, Readiness, WriteHalf};

/// One ring and the socket of the connection.
pub(super) struct Half<R> {
    ring: R,
    beside: Arc<Leases>,
    /// Poller of the doorbell and the socket.
    watched: Poller,
    /// `true` if the socket may have a new event since its last check.
    woken: bool,
}

pub(super) fn halves(
    link: SharedLink,
    beside: &Arc<Leases>,
) -> io::Result<(Half<Consumer>, Half<Producer>)> {
    let read = Half::new(link.consumer, Consumer::doorbell, beside)?;
    let write = Half::new(link.producer, Producer::doorbell, beside)?;
    Ok((read, write))
}

impl<R> Half<R> {
    fn new(ring: R, doorbell: fn(&R) -> BorrowedFd<'_>, beside: &Arc<Leases>) -> io::Result<Self> {
        let watched = Poller::new()?;
        watched.add(doorbell(&ring), 0, EventFlags::IN)?;
        watched.add(beside.socket(), 1, EventFlags::IN | EventFlags::RDHUP)?;
        Ok(Self {
            ring,
            beside: Arc::clone(beside),
            watched,
            woken: false,
        })
    }

    /// `true` if the peer has ended. The socket is checked only after an event.
    fn has_ended(&mut self) -> bool {
        self.woken = self.woken && self.beside.has_ended();
        self.woken
    }
}

impl ReadHalf for Half<Consumer> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.ring.read(into)?;
        if count > 0 || into.is_empty() {
            // The data that woke this side is here. An event of the socket would wake this side
            // again.
            self.woken &= count == 0;
            return Ok(count);
        }
        if self.has_ended() {
            // Bytes that the peer wrote before its end come first.
            return Ok(self.ring.read(into)?);
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.ring.prepare_to_sleep()
    }

    fn awake(&mut self) {
        self.ring.awake();
        self.woken = true;
    }

    fn is_quiet_awake(&self) -> bool {
        true
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

impl WriteHalf for Half<Producer> {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = self.ring.write(parts)?;
        if count > 0 || parts.iter().all(|part| part.is_empty()) {
            return Ok(count);
        }
        if self.has_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn prepare_to_sleep(&mut self) -> bool {
        self.ring.prepare_to_sleep()
    }

    fn awake(&mut self) {
        self.ring.awake();
        self.woken = true;
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    fn ready_when(&self) -> Readiness {
        Readiness::Readable
    }

    fn close(&mut self) {
        close(self.beside.socket());
    }
}
