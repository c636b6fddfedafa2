//! Operation in progress, and the errors that end it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::error::CollectiveError;
use crate::wire::{AbortCause, Frame, GroupRefusal, Sent};

/// Rank with the address at which it listens, as errors show them.
pub(crate) type Named = (u32, SocketAddr);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    pub(crate) call: Call,
    pub(crate) started: Instant,
    pub(crate) timeout: Duration,
}

impl Running {
    pub(crate) fn timed_out(&self, (peer, address): Named, state: &'static str) -> CollectiveError {
        CollectiveError::Timeout {
            call: self.call,
            peer,
            address,
            state,
            elapsed: self.started.elapsed(),
        }
    }

    /// Returns the error of an operation that another thread or a watch ended.
    pub(crate) fn interrupted(&self, rank: u32) -> CollectiveError {
        CollectiveError::Interrupted {
            call: self.call,
            rank,
            elapsed: self.started.elapsed(),
        }
    }

    pub(crate) fn lost(&self, (peer, address): Named, reason: &str) -> CollectiveError {
        CollectiveError::Lost {
            call: self.call,
            peer,
            address,
            reason: reason.into(),
            elapsed: self.started.elapsed(),
        }
    }

    pub(crate) fn aborted(
        &self,
        (peer, address): Named,
        suspect: u32,
        cause: AbortCause,
    ) -> CollectiveError {
        CollectiveError::Aborted {
            call: self.call,
            peer,
            address,
            suspect,
            cause,
        }
    }

    pub(crate) fn refused(&self, (peer, address): Named, refusal: GroupRefusal) -> CollectiveError {
        CollectiveError::Refused {
            call: self.call,
            peer,
            address,
            refusal,
        }
    }

    pub(crate) fn not_a_rank(&self, (peer, address): Named, found: String) -> CollectiveError {
        CollectiveError::NotARank {
            call: self.call,
            peer,
            address,
            found,
        }
    }

    pub(crate) fn unexpected(&self, peer: Named, sent: Sent) -> CollectiveError {
        match sent {
            Ok(Frame::Abort { suspect, cause }) => self.aborted(peer, suspect, cause),
            sent => self.not_a_rank(peer, shown(sent)),
        }
    }
}

/// Returns a frame in the form that errors show.
///
/// Bytes that are not a frame are escaped.
pub(crate) fn shown(sent: Sent) -> String {
    match sent {
        Ok(frame) => format!("{frame:?}"),
        Err(bytes) => bytes.escape_ascii().to_string(),
    }
}
