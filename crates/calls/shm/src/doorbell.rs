//! Wake-ups across processes.
//!
//! A doorbell is a descriptor that becomes readable when the peer signals it, and stays readable
//! until it is cleared.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{CWD, OFlags, fcntl_getfl, fcntl_setfl, readlinkat};
use rustix::io::{Errno, read, write};

use crate::error::{Result, ShmError, uninterrupted};

/// Eventfd that both processes have.
#[derive(Debug)]
pub(crate) struct Doorbell(OwnedFd);

impl Doorbell {
    pub(crate) fn new() -> Result<Self> {
        eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Self)
            .map_err(ShmError::system("create a doorbell (eventfd)"))
    }

    /// Adopts a doorbell that a peer passed.
    ///
    /// Any other kind of descriptor is refused, because a write to it could block or reach another
    /// reader.
    pub(crate) fn from_peer(descriptor: OwnedFd) -> Result<Self> {
        const WHAT: &str = "a doorbell";
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let kind = readlinkat(CWD, path, Vec::new())
            .map_err(ShmError::system("check the descriptor of a doorbell"))?;
        if kind.as_bytes() != b"anon_inode:[eventfd]" {
            let found = format!("it is {}", kind.to_string_lossy());
            return Err(ShmError::refused(WHAT, found));
        }
        let flags = fcntl_getfl(&descriptor).map_err(ShmError::system("read flags"))?;
        fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)
            .map_err(ShmError::system("make a doorbell non-blocking"))?;
        Ok(Self(descriptor))
    }

    pub(crate) fn duplicate(&self) -> Result<Self> {
        let copy = self.0.try_clone();
        copy.map(Self)
            .map_err(ShmError::system("duplicate a doorbell"))
    }

    /// Wakes the side that waits for the doorbell.
    pub(crate) fn signal(&self) -> Result<()> {
        match uninterrupted(|| write(&self.0, &1_u64.to_ne_bytes())) {
            // The counter is full, so the doorbell is already readable.
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(error) => Err(ShmError::system("ring the peer's doorbell")(error)),
        }
    }

    pub(crate) fn clear(&self) {
        let mut count = [0; 8];
        // The read fails if the doorbell was not signalled.
        let _ = uninterrupted(|| read(&self.0, &mut count));
    }
}

impl From<Doorbell> for OwnedFd {
    fn from(doorbell: Doorbell) -> Self {
        doorbell.0
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::pipe::pipe;

    use super::*;

    fn is_set(doorbell: &Doorbell) -> bool {
        let mut wait = [PollFd::new(doorbell, PollFlags::IN)];
        poll(&mut wait, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn it_rings_while_it_is_not_cleared() {
        let doorbell = Doorbell::new().unwrap();
        assert!(!is_set(&doorbell));
        let theirs = Doorbell::from_peer(doorbell.duplicate().unwrap().0).unwrap();
        theirs.signal().unwrap();
        theirs.signal().unwrap();
        assert!(is_set(&doorbell));
        doorbell.clear();
        assert!(!is_set(&doorbell));
        doorbell.clear();
    }

    #[test]
    fn a_doorbell_that_can_ring_no_more_still_rings() {
        let doorbell = Doorbell::new().unwrap();
        write(&doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        doorbell.signal().unwrap();
        assert!(is_set(&doorbell));
    }

    #[test]
    fn a_pipe_is_no_doorbell() {
        let (_read, write) = pipe().unwrap();
        let error = Doorbell::from_peer(write).unwrap_err().to_string();
        assert!(
            error.contains("cannot use a doorbell of the peer: it is pipe"),
            "{error}"
        );
    }
}
