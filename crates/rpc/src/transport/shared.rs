//! The two halves of a link through shared memory.
//!
//! The Unix socket that the rings were passed over stays open: its end tells that the peer has ended,
//! which memory cannot. Arenas are passed over it, and nothing else.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdzv_event::{EventFlags, Poller};
use rdzv_shm::{Consumer, Leases, Link, Producer};

use super::socket::close;
use super::{ReadHalf, Readiness, WriteHalf};

pub(super) struct SharedRead {
    ring: Consumer,
    beside: Arc<Leases>,
    /// The doorbell and the socket in one.
    watched: Poller,
    /// Whether the socket may have something to tell since it was last looked at.
    woken: bool,
}

pub(super) struct SharedWrite {
    ring: Producer,
    beside: Arc<Leases>,
    watched: Poller,
    woken: bool,
}

pub(super) fn halves(link: Link, beside: &Arc<Leases>) -> io::Result<(SharedRead, SharedWrite)> {
    let read = SharedRead {
        watched: both(link.consumer.doorbell(), beside.socket())?,
        ring: link.consumer,
        beside: Arc::clone(beside),
        woken: false,
    };
    let write = SharedWrite {
        watched: both(link.producer.doorbell(), beside.socket())?,
        ring: link.producer,
        beside: Arc::clone(beside),
        woken: false,
    };
    Ok((read, write))
}

/// One descriptor that is readable when either of the two is.
fn both(doorbell: BorrowedFd<'_>, socket: &OwnedFd) -> io::Result<Poller> {
    let watched = Poller::new()?;
    watched.add(doorbell, 0, EventFlags::IN)?;
    watched.add(socket, 1, EventFlags::IN | EventFlags::RDHUP)?;
    Ok(watched)
}

impl ReadHalf for SharedRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.ring.read(into)?;
        if count > 0 || into.is_empty() {
            return Ok(count);
        }
        if self.woken && self.beside.has_ended() {
            // What it wrote before it ended comes first.
            return Ok(self.ring.read(into)?);
        }
        self.woken = false;
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
}

impl WriteHalf for SharedWrite {
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let count = self.ring.write(parts)?;
        if count > 0 || parts.iter().all(|part| part.is_empty()) {
            return Ok(count);
        }
        if self.woken && self.beside.has_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        self.woken = false;
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
