//! Waiting for a descriptor until a deadline, on the caller's thread.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::error::TransportError;

/// A connection attempt: the peer, the start and the deadline.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attempt<'a> {
    pub(super) peer: &'a str,
    pub(super) since: Instant,
    pub(super) deadline: Instant,
}

impl Attempt<'_> {
    /// Waits until the descriptor is ready or broken.
    pub(super) fn wait(
        &self,
        descriptor: impl AsFd,
        flags: PollFlags,
        what: &'static str,
    ) -> Result<(), TransportError> {
        loop {
            let now = Instant::now();
            let left = self.deadline.saturating_duration_since(now);
            let mut watched = [PollFd::new(&descriptor, flags)];
            match rdzv_event::poll(&mut watched, Some(left)) {
                Ok(0) if left.is_zero() => {
                    return Err(TransportError::Late {
                        peer: self.peer.to_owned(),
                        what,
                        waited: now.saturating_duration_since(self.since).max(MILLISECOND),
                    });
                }
                Ok(0) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(TransportError::system("wait for a peer")(error)),
            }
        }
    }

    /// Retries an operation as long as it would block, until the deadline.
    pub(super) fn retry<T>(
        &self,
        descriptor: impl AsFd,
        flags: PollFlags,
        what: &'static str,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> Result<T, TransportError> {
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(&descriptor, flags, what)?;
                }
                Err(error) => return Err(self.lost(error)),
            }
        }
    }

    /// Returns the error of a connection that broke during the attempt.
    pub(super) fn lost(&self, source: io::Error) -> TransportError {
        TransportError::Unreachable {
            peer: self.peer.to_owned(),
            source,
        }
    }
}

const MILLISECOND: Duration = Duration::from_millis(1);
