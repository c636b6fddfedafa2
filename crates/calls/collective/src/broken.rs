//! The end of a group, which its collective operations and its messages share.

use crate::error::CollectiveError;
use crate::wire::{Cause, Frame};

/// The first error of a group: of a collective operation or a message, whichever fails first.
#[derive(Debug)]
pub(crate) struct Break {
    pub(crate) first: String,
    /// The rank at fault.
    pub(crate) suspect: u32,
    pub(crate) cause: Cause,
}

impl Break {
    pub(crate) fn new(error: &CollectiveError, own_rank: u32) -> Self {
        let (suspect, cause) = error.blame(own_rank);
        Self {
            first: error.to_string(),
            suspect,
            cause,
        }
    }

    /// The error of all later operations.
    pub(crate) fn error(&self) -> CollectiveError {
        CollectiveError::broken(&self.first)
    }

    /// The news for the peers.
    pub(crate) fn frame(&self) -> Frame {
        Frame::Abort {
            suspect: self.suspect,
            cause: self.cause,
        }
    }
}
