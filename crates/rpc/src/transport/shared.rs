//! The two halves of a link through shared memory.
//!
//! The Unix socket that the rings were passed over stays open and carries nothing: its end tells
//! that the peer has ended, which memory cannot.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rdzv_shm::{Consumer, Link, Producer};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::socket::close;
use super::{ReadHalf, Readiness, WriteHalf};

pub(super) struct SharedRead {
    ring: Consumer,
    socket: Arc<OwnedFd>,
    /// The doorbell and the socket in one.
    watched: OwnedFd,
    /// Whether the socket may have something to tell since it was last looked at.
    woken: bool,
}

pub(super) struct SharedWrite {
    ring: Producer,
    socket: Arc<OwnedFd>,
    watched: OwnedFd,
    woken: bool,
}

pub(super) fn halves(link: Link, socket: OwnedFd) -> io::Result<(SharedRead, SharedWrite)> {
    let socket = Arc::new(socket);
    let read = SharedRead {
        watched: both(link.consumer.doorbell(), &socket)?,
        ring: link.consumer,
        socket: Arc::clone(&socket),
        woken: false,
    };
    let write = SharedWrite {
        watched: both(link.producer.doorbell(), &socket)?,
        ring: link.producer,
        socket,
        woken: false,
    };
    Ok((read, write))
}

/// One descriptor that is readable when either of the two is.
fn both(doorbell: BorrowedFd<'_>, socket: &OwnedFd) -> io::Result<OwnedFd> {
    let watched = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let readable = epoll::EventFlags::IN;
    epoll::add(&watched, doorbell, epoll::EventData::new_u64(0), readable)?;
    let ended = readable | epoll::EventFlags::RDHUP;
    epoll::add(&watched, socket, epoll::EventData::new_u64(1), ended)?;
    Ok(watched)
}

/// Whether the peer has ended, or has closed.
fn has_ended(socket: &OwnedFd) -> bool {
    let mut nothing = [0; 1];
    match recv(socket, &mut nothing, RecvFlags::DONTWAIT) {
        Err(Errno::AGAIN | Errno::INTR) => false,
        // The end, an error, or words where none belong: in each case it is over.
        Ok(_) | Err(_) => true,
    }
}

impl ReadHalf for SharedRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.ring.read(into)?;
        if count > 0 || into.is_empty() {
            return Ok(count);
        }
        if self.woken && has_ended(&self.socket) {
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
        if self.woken && has_ended(&self.socket) {
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
        close(&self.socket);
    }
}
