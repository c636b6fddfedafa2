//! Memory that is lent to peers without being copied.
//!
//! ```text
//!   owner                                             borrower
//!   Arena::new(capacity)
//!   allocate(length) ─► Block, filled, frozen ─► Bytes
//!   exchange.lend(&bytes) ─► Location ── each ──────► exchange.borrow(location, on_return) ─► Bytes
//!       passes the arena the first time ── once ────►     maps it
//!   exchange.returned(location)          ◄── later ──  on_return, when the last clone is dropped
//! ```
//!
//! A block is free again when the last clone of its bytes is dropped here, and every loan of it is over:
//! because the borrower has returned it, or because it can have it no more. A connection that is lost
//! does not end a loan, since the borrower still has bytes that must not change; that it has let go of
//! all of them, or has ended, is told by its end of a pair of sockets (the *lifeline*).
//!
//! Only the owner can write: the seals let nobody else map the memory for writing. That it does not write
//! what it has lent is a promise between processes of one user, which no seal can enforce; a borrower that
//! does not trust the owner has to copy.

mod block;
mod blocks;
mod exchange;
mod peer;
mod registry;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::block::Block;
use self::blocks::Blocks;
pub use self::exchange::Exchange;
use crate::error::ShmError;
use crate::sealed::{self, Memory, Pages};

/// Memory of this process that can be lent. Clones are the same arena.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: u32,
    memory: Memory,
    file: OwnedFd,
    blocks: Mutex<Blocks>,
    /// To whom it was passed: they are told when it is gone.
    passed: Mutex<Vec<Weak<Exchange>>>,
    /// Loans to those whose connection is over, and who may still have them.
    leftover: Mutex<Vec<Leftover>>,
}

/// Loans that nobody can return any more.
#[derive(Debug)]
struct Leftover {
    /// Hung up when the borrower has let go of everything.
    lifeline: Arc<OwnedFd>,
    /// How many loans of which generation.
    loans: Vec<(u32, u64)>,
}

/// Where bytes lie in the arenas of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Which arena of the process.
    pub arena: u32,
    /// Which use of that place this is. No two blocks in use have the same number.
    pub generation: u32,
    /// Where the bytes begin in it.
    pub offset: u64,
    /// How many they are.
    pub length: u64,
}

impl Arena {
    /// An arena of this many bytes, rounded up to a power of two of at least 4 KiB. Memory is taken from
    /// the system when it is first used.
    ///
    /// # Errors
    ///
    /// [`ShmError::System`] if the system refuses.
    pub fn new(capacity: usize) -> Result<Self, ShmError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let blocks = Blocks::new(capacity);
        let pages = Pages::OnDemandWrittenHere;
        let (file, memory) = sealed::create("rdzv-arena", blocks.capacity(), pages)?;
        let shared = Arc::new(Shared {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            memory,
            file,
            blocks: Mutex::new(blocks),
            passed: Mutex::default(),
            leftover: Mutex::default(),
        });
        registry::enter(&shared);
        Ok(Self(shared))
    }

    /// The arena of this process that these bytes lie in, if they are part of a frozen block.
    pub fn of(bytes: &Bytes) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        registry::find(bytes.as_ptr() as usize).map(Self)
    }

    /// Tells it from the other arenas of this process.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// How many bytes it has.
    pub fn capacity(&self) -> usize {
        self.0.memory.length()
    }

    /// How many bytes are not in use. Blocks are powers of two, so less may fit.
    pub fn free(&self) -> usize {
        self.0.sweep();
        self.0.blocks().free()
    }

    /// What peers need to read it; they cannot write.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Memory to fill and then freeze; nothing if there is not enough left. What is in it is left over
    /// from earlier uses.
    pub fn allocate(&self, length: usize) -> Option<Block> {
        self.0.sweep();
        let offset = self.0.blocks().allocate(length)?;
        Some(Block {
            arena: Arc::clone(&self.0),
            offset,
            length,
        })
    }

    /// Notes another loan of these bytes, which lie here.
    fn pin(&self, bytes: &Bytes) -> Option<Location> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.0.start())?;
        let generation = self.0.blocks().pin(offset)?;
        Some(Location {
            arena: self.0.id,
            generation,
            offset: offset as u64,
            length: bytes.len() as u64,
        })
    }
}

impl Shared {
    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        // Nothing in there panics half-way.
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of its first byte.
    fn start(&self) -> usize {
        self.memory.start() as usize
    }

    fn unpin(&self, generation: u32, count: u64) {
        self.blocks().unpin(generation, count);
    }

    /// Keeps loans until the borrower has let go of them.
    fn leave(&self, lifeline: Arc<OwnedFd>, loans: Vec<(u32, u64)>) {
        let leftover = Leftover { lifeline, loans };
        self.leftover
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(leftover);
    }

    /// Ends the loans of those who have let go of everything. Done whenever somebody asks for memory,
    /// since nobody else wants it.
    fn sweep(&self) {
        let mut leftover = self.leftover.lock().unwrap_or_else(PoisonError::into_inner);
        leftover.retain(|left| {
            let over = is_hung_up(&left.lifeline);
            if over {
                let mut blocks = self.blocks();
                for (generation, count) in &left.loans {
                    blocks.unpin(*generation, *count);
                }
            }
            !over
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        registry::leave(self.start());
        let passed = self
            .passed
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        for exchange in passed.drain(..).filter_map(|exchange| exchange.upgrade()) {
            exchange.forget(self.id);
        }
    }
}

/// Whether the other end of a pair of sockets is closed, in all processes.
fn is_hung_up(lifeline: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(lifeline, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut watched, Some(&at_once)).is_ok_and(|_| watched[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests;
