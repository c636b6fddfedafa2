//! Memory that is lent to peers without being copied.
//!
//! ```text
//!   owner                                             borrower
//!   Arena::new(capacity)
//!   pass descriptor(), id(), capacity()  ─ once ────► PeerArena::open
//!   allocate(length) ─► Block, filled, frozen ─► Bytes
//!   locate(&bytes) ─► Location           ─ each ────► lend(location, on_return) ─► Bytes
//!   keeps a clone of the bytes
//!   drops it                             ◄─ later ──  on_return, when the last clone is dropped
//! ```
//!
//! A block is free again when the last clone of its bytes is dropped, so the owner keeps one for each loan.
//! It may give a loan up only when the borrower has returned it, or when the borrower's *process* has ended:
//! a connection that is lost leaves the borrower with bytes that must not change.
//!
//! Only the owner can write: the seals let nobody else map the memory for writing. That it does not write
//! what it has lent is a promise between processes of one user, which no seal can enforce; a borrower that
//! does not trust the owner has to copy.
#![expect(
    unsafe_code,
    reason = "slices of mapped memory can only be made from raw pointers"
)]

mod blocks;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use self::blocks::Blocks;
use crate::error::ShmError;
use crate::sealed::{self, Memory, Pages};

/// Memory of this process that can be lent. Clones are the same arena.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: u64,
    memory: Memory,
    file: OwnedFd,
    blocks: Mutex<Blocks>,
}

/// Where bytes lie in the arenas of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Which arena of the process.
    pub arena: u64,
    /// Where the bytes begin in it.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
    /// Which use of that place this is: a later one has a larger number.
    pub generation: u64,
}

impl Arena {
    /// An arena of this many bytes, rounded up to a power of two of at least 4 KiB. Memory is taken from
    /// the system when it is first used.
    ///
    /// # Errors
    ///
    /// [`ShmError::System`] if the system refuses.
    pub fn new(capacity: usize) -> Result<Self, ShmError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let blocks = Blocks::new(capacity);
        let pages = Pages::OnDemandWrittenHere;
        let (file, memory) = sealed::create("rdzv-arena", blocks.capacity(), pages)?;
        Ok(Self(Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            file,
            blocks: Mutex::new(blocks),
        })))
    }

    /// Tells it from the other arenas of this process.
    pub fn id(&self) -> u64 {
        self.0.id
    }

    /// How many bytes it has.
    pub fn capacity(&self) -> usize {
        self.0.memory.length()
    }

    /// How many bytes are not in use. Blocks are powers of two, so less may fit.
    pub fn free(&self) -> usize {
        self.0.blocks().free()
    }

    /// What peers need to read it; they cannot write.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Memory to fill and then freeze; nothing if there is not enough left. What is in it is left over
    /// from earlier uses.
    pub fn allocate(&self, length: usize) -> Option<Block> {
        let offset = self.0.blocks().allocate(length)?;
        Some(Block {
            arena: Arc::clone(&self.0),
            offset,
            length,
        })
    }

    /// Where these bytes lie, if they are a frozen block of this arena or part of one.
    pub fn locate(&self, bytes: &Bytes) -> Option<Location> {
        let start = self.0.memory.start() as usize;
        let offset = (bytes.as_ptr() as usize).checked_sub(start)?;
        if bytes.is_empty() || offset >= self.capacity() {
            return None;
        }
        let generation = self.0.blocks().generation_at(offset)?;
        Some(Location {
            arena: self.0.id,
            offset: offset as u64,
            length: bytes.len() as u64,
            generation,
        })
    }
}

impl Shared {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // Nothing in there panics half-way.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of an arena that nobody else uses. It is given back when it, or the bytes that it became, are
/// dropped.
#[derive(Debug)]
pub struct Block {
    arena: Arc<Shared>,
    offset: usize,
    length: usize,
}

impl Block {
    /// The bytes as they are now, and will stay.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Block {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the block lies in the mapping, which lives as long as `self`; until `self` is dropped
        // nothing else is given the same place, no other process can write, and who writes in this
        // process has `self` for itself.
        unsafe { slice::from_raw_parts(self.arena.memory.start().add(self.offset), self.length) }
    }
}

impl AsMut<[u8]> for Block {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above. Borrowers read only what was frozen, and nobody has `self` any more then.
        unsafe {
            slice::from_raw_parts_mut(self.arena.memory.start().add(self.offset), self.length)
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.arena.blocks().release(self.offset);
    }
}

/// The arena of a peer, for reading.
#[derive(Debug, Clone)]
pub struct PeerArena {
    id: u64,
    memory: Arc<Memory>,
}

impl PeerArena {
    /// The arena of this id and capacity that a peer passed.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if it is not sealed memory of that size.
    pub fn open(id: u64, capacity: usize, descriptor: OwnedFd) -> Result<Self, ShmError> {
        let memory = Arc::new(sealed::open_to_read(&descriptor, capacity)?);
        Ok(Self { id, memory })
    }

    /// The bytes at this place, without a copy. `on_return` runs when the last clone is dropped, on
    /// whichever thread that is: it must not wait. It runs also if this fails.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if the place is not in this arena.
    pub fn lend(
        &self,
        location: Location,
        on_return: impl FnOnce() + Send + 'static,
    ) -> Result<Bytes, ShmError> {
        let mut loan = Loan {
            memory: Arc::clone(&self.memory),
            offset: 0,
            length: 0,
            on_return: Some(Box::new(on_return)),
        };
        let range = usize::try_from(location.offset)
            .ok()
            .zip(usize::try_from(location.length).ok())
            .filter(|(offset, length)| {
                let end = offset.checked_add(*length);
                location.arena == self.id && end.is_some_and(|end| end <= self.memory.length())
            });
        let Some((offset, length)) = range else {
            let found = format!(
                "{location:?} is not in arena {} of {} bytes",
                self.id,
                self.memory.length()
            );
            return Err(ShmError::refused("bytes in an arena", found));
        };
        (loan.offset, loan.length) = (offset, length);
        Ok(Bytes::from_owner(loan))
    }
}

/// What keeps lent bytes mapped, and gives them back.
struct Loan {
    memory: Arc<Memory>,
    offset: usize,
    length: usize,
    on_return: Option<Box<dyn FnOnce() + Send>>,
}

impl AsRef<[u8]> for Loan {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `lend` has compared the end with that of the mapping, which lives as long as `self`, and
        // cannot shrink. The owner has promised not to write what it has lent; if it breaks its word,
        // these are other bytes, and all bytes are valid.
        unsafe { slice::from_raw_parts(self.memory.start().add(self.offset), self.length) }
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

#[cfg(test)]
mod tests;
