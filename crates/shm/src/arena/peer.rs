//! Memory of others, read where it is.
#![expect(
    unsafe_code,
    reason = "slices of mapped memory can only be made from raw pointers"
)]

use std::fmt;
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;

use super::Location;
use crate::error::ShmError;
use crate::sealed::{self, Memory};

/// The arena of a peer, for reading.
#[derive(Debug, Clone)]
pub(super) struct PeerArena {
    id: u32,
    mapped: Arc<Mapped>,
}

/// What is mapped as long as anything is lent.
#[derive(Debug)]
struct Mapped {
    memory: Memory,
    /// Its other end tells the owner, by closing, that nothing is lent any more.
    _lifeline: Option<Arc<OwnedFd>>,
}

impl PeerArena {
    /// The arena of this id and capacity that a peer passed, and the end of the lifeline that tells it
    /// when it is used no more.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if it is not sealed memory of that size.
    pub(super) fn open(
        id: u32,
        capacity: usize,
        descriptor: &OwnedFd,
        lifeline: Option<Arc<OwnedFd>>,
    ) -> Result<Self, ShmError> {
        let mapped = Mapped {
            memory: sealed::open_to_read(descriptor, capacity)?,
            _lifeline: lifeline,
        };
        Ok(Self {
            id,
            mapped: Arc::new(mapped),
        })
    }

    /// The bytes at this place, without a copy. `on_return` runs when the last clone is dropped, on
    /// whichever thread that is: it must not wait. It runs also if this fails.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if the place is not in this arena.
    pub(super) fn lend(
        &self,
        location: Location,
        on_return: impl FnOnce() + Send + 'static,
    ) -> Result<Bytes, ShmError> {
        let mut loan = Loan {
            mapped: Arc::clone(&self.mapped),
            offset: 0,
            length: 0,
            on_return: Some(Box::new(on_return)),
        };
        let range = usize::try_from(location.offset)
            .ok()
            .zip(usize::try_from(location.length).ok())
            .filter(|(offset, length)| {
                let end = offset.checked_add(*length);
                location.arena == self.id
                    && end.is_some_and(|end| end <= self.mapped.memory.length())
            });
        let Some((offset, length)) = range else {
            let found = format!(
                "{location:?} is not in arena {} of {} bytes",
                self.id,
                self.mapped.memory.length()
            );
            return Err(ShmError::refused("bytes in an arena", found));
        };
        (loan.offset, loan.length) = (offset, length);
        Ok(Bytes::from_owner(loan))
    }
}

/// What keeps lent bytes mapped, and gives them back.
struct Loan {
    mapped: Arc<Mapped>,
    offset: usize,
    length: usize,
    on_return: Option<Box<dyn FnOnce() + Send>>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `lend` has compared the end with that of the mapping, which lives as long as `self`, and
        // cannot shrink. The owner has promised not to write what it has lent; if it breaks its word,
        // these are other bytes, and all bytes are valid.
        unsafe { slice::from_raw_parts(self.mapped.memory.start().add(self.offset), self.length) }
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        if let Some(on_return) = self.on_return.take() {
            on_return();
        }
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Loan({} bytes at {})", self.length, self.offset)
    }
}
