//! Arenas of peers, read in place.
#![expect(
    unsafe_code,
    reason = "slices of mapped memory can only be made from raw pointers"
)]

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::Arc;

use bytes::Bytes;
use rdzv_lock::RwLock;

use super::Location;
use crate::error::{Result, ShmError};
use crate::sealed::{self, Memory};

/// Arena of a peer, for reading.
///
/// The mapping lasts at least as long as any lease.
#[derive(Debug)]
pub(super) struct PeerArena {
    id: u32,
    memory: Memory,
    /// End of the liveness socket; its close shows the owner that no lease is left.
    _liveness: Option<Arc<OwnedFd>>,
}

/// Mapped arenas of peers: address of the first byte, and the end address.
static MAPPED: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

/// `true` if these bytes are leased from a peer, so they are read-only.
pub fn is_leased(bytes: &Bytes) -> bool {
    let address = bytes.as_ptr() as usize;
    let mapped = MAPPED.read();
    let before = mapped.range(..=address).next_back();
    !bytes.is_empty() && before.is_some_and(|(_, end)| address < *end)
}

impl PeerArena {
    fn range(&self) -> (usize, usize) {
        let start = self.memory.as_mut_ptr() as usize;
        (start, start + self.memory.len())
    }

    /// Opens the arena of this id and capacity that a peer passed.
    ///
    /// `liveness` is the end of the liveness socket to close when the arena is no longer used.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if the descriptor is not sealed memory of that size;
    /// [`ShmError::System`] if the system cannot map it.
    pub(super) fn open(
        id: u32,
        capacity: usize,
        descriptor: &OwnedFd,
        liveness: Option<Arc<OwnedFd>>,
    ) -> Result<Arc<Self>> {
        let arena = Self {
            id,
            memory: sealed::open_to_read(descriptor, capacity)?,
            _liveness: liveness,
        };
        let (start, end) = arena.range();
        MAPPED.write().insert(start, end);
        Ok(Arc::new(arena))
    }

    /// Returns the bytes at this location, without a copy.
    ///
    /// `on_release` runs when the last clone is dropped, on the thread of that drop, so it must not
    /// block. `on_release` also runs if this function fails.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if the location is not in this arena.
    pub(super) fn slice(
        self: &Arc<Self>,
        location: Location,
        on_release: impl FnOnce() + Send + 'static,
    ) -> Result<Bytes> {
        let mut lease = Lease {
            arena: Arc::clone(self),
            offset: 0,
            length: 0,
            on_release: Some(Box::new(on_release)),
        };
        let range = usize::try_from(location.offset)
            .ok()
            .zip(usize::try_from(location.length).ok())
            .filter(|(offset, length)| {
                let end = offset.checked_add(*length);
                location.arena == self.id && end.is_some_and(|end| end <= self.memory.len())
            });
        let Some((offset, length)) = range else {
            let found = format!(
                "{location:?} is not in arena {} of {} bytes",
                self.id,
                self.memory.len()
            );
            return Err(ShmError::refused("bytes in an arena", found));
        };
        (lease.offset, lease.length) = (offset, length);
        Ok(Bytes::from_owner(lease))
    }
}

impl Drop for PeerArena {
    fn drop(&mut self) {
        // The entry is removed before the memory is unmapped, because its addresses may then be
        // reused.
        MAPPED.write().remove(&self.range().0);
    }
}

/// Lease that keeps its bytes mapped; a drop releases them.
struct Lease {
    arena: Arc<PeerArena>,
    offset: usize,
    length: usize,
    on_release: Option<Box<dyn FnOnce() + Send>>,
}

impl AsRef<[u8]> for Lease {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `slice` has compared the end with that of the mapping, which lives as long as
        // `self`, and cannot shrink. The owner has promised not to write to leased bytes. If it
        // writes anyway, the bytes are different ones, and all values of bytes are valid.
        unsafe {
            slice::from_raw_parts(self.arena.memory.as_mut_ptr().add(self.offset), self.length)
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(on_release) = self.on_release.take() {
            on_release();
        }
    }
}
