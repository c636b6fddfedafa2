//! Error that ends a group, for its collective operations and its messages.

use crate::error::CollectiveError;
use crate::wire::{AbortCause, Frame};

/// First error of a group, from a collective operation or from a message.
#[derive(Debug)]
pub(crate) struct Break {
    pub(crate) first: String,
    pub(crate) suspect: u32,
    pub(crate) cause: AbortCause,
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

    /// Returns the error of all later operations.
    pub(crate) fn error(&self) -> CollectiveError {
        CollectiveError::broken(&self.first)
    }

    /// Returns the frame that notifies the peers.
    pub(crate) fn frame(&self) -> Frame {
        Frame::Abort {
            suspect: self.suspect,
            cause: self.cause,
        }
    }
}
