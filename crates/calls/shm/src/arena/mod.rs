//! Memory that is leased to peers without a copy.
//!
//! ```text
//!   owner                                             peer
//!   Arena::new(capacity)
//!   allocate(length) ─► Block, filled, frozen ─► Bytes
//!   leases.grant(&bytes) ─► Location ── each ──────► leases.open(location, on_release) ─► Bytes
//!       passes the arena the first time ── once ────►     maps it
//!   leases.released(arena, generation) ◄── later ──  on_release, when the last clone is dropped
//! ```
//!
//! A block is free again when the last clone of its bytes is dropped here and every lease of the
//! block has ended. A lease ends when the peer releases it, or when the peer can no longer use it.
//! A lost connection does not end a lease, because the peer still has bytes that must not change.
//! The end of a pair of sockets (the *liveness socket*) shows this process that the peer has
//! dropped all of them, or has ended.
//!
//! Only the owner can write: the seals prevent other processes from mapping the memory for writing.
//! No seal can prevent the owner from writing to leased bytes. Processes of one user rely on each
//! other for that. A peer that does not trust the owner has to copy.

mod block;
mod blocks;
mod leases;
mod peer;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rdzv_lock::{Mutex, RwLock};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

pub use self::block::Block;
use self::blocks::Blocks;
pub use self::leases::Leases;
pub use self::peer::is_leased;
use crate::error::Result;
use crate::sealed::{self, Memory, Pages};

/// Memory of this process that can be leased.
///
/// Clones are handles to the same arena.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: u32,
    memory: Memory,
    file: OwnedFd,
    blocks: Mutex<Blocks>,
    /// Peers to which the arena was passed, for a notification of its end.
    passed: Mutex<Vec<Weak<Leases>>>,
    /// Leases of closed connections whose peers may still use them.
    orphaned: Mutex<Vec<Orphaned>>,
}

/// Leases of a closed connection; the peer can no longer release them.
#[derive(Debug)]
struct Orphaned {
    /// Socket that is hung up when the peer has dropped everything.
    liveness: Arc<OwnedFd>,
    /// Number of leases of each generation.
    leases: Vec<(u32, u64)>,
}

/// Location of bytes in the arenas of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Location {
    /// Number of the arena in the process.
    pub arena: u32,
    /// Number of this use of the location; unique among the blocks in use.
    pub generation: u32,
    /// Offset of the first byte in the arena.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

impl Arena {
    /// Creates an arena of this many bytes.
    ///
    /// The capacity is rounded up to a power of two, at least 4 KiB. The system provides the memory
    /// at its first use.
    ///
    /// # Errors
    ///
    /// [`ShmError::System`](crate::ShmError::System) if the system refuses.
    pub fn new(capacity: usize) -> Result<Self> {
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
            orphaned: Mutex::default(),
        });
        let registered = Arc::downgrade(&shared);
        ARENAS.write().insert(shared.start(), registered);
        Ok(Self(shared))
    }

    /// Returns the arena of this process that contains these bytes.
    ///
    /// `None` if the bytes are empty or in no arena.
    pub fn of(bytes: &Bytes) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        find(bytes.as_ptr() as usize).map(Self)
    }

    /// Returns the number of the arena in this process.
    pub fn id(&self) -> u32 {
        self.0.id
    }

    /// Returns the capacity in bytes.
    pub fn capacity(&self) -> usize {
        self.0.memory.len()
    }

    /// Returns the number of unused bytes.
    ///
    /// Block sizes are powers of two, so the largest free block may be smaller.
    pub fn free(&self) -> usize {
        self.0.reclaim();
        self.0.blocks.lock().free()
    }

    /// Returns the descriptor with which peers can read but not write.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Returns memory to fill and then freeze; `None` if there is too little.
    ///
    /// The memory may have content from earlier uses.
    pub fn allocate(&self, length: usize) -> Option<Block> {
        self.0.reclaim();
        let offset = self.0.blocks.lock().allocate(length)?;
        Some(Block {
            arena: Arc::clone(&self.0),
            offset,
            length,
        })
    }

    /// Records another lease of these bytes, and returns their location.
    fn pin(&self, bytes: &Bytes) -> Option<Location> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.0.start())?;
        let generation = self.0.blocks.lock().pin(offset)?;
        Some(Location {
            arena: self.0.id,
            generation,
            offset: offset as u64,
            length: bytes.len() as u64,
        })
    }
}

impl Shared {
    /// Returns the address of the first byte.
    fn start(&self) -> usize {
        self.memory.as_mut_ptr() as usize
    }

    fn unpin(&self, generation: u32, count: u64) {
        self.blocks.lock().unpin(generation, count);
    }

    /// Keeps leases until the peer has dropped them.
    fn orphan(&self, liveness: Arc<OwnedFd>, leases: Vec<(u32, u64)>) {
        let orphaned = Orphaned { liveness, leases };
        self.orphaned.lock().push(orphaned);
    }

    /// Ends the leases whose liveness socket is closed.
    fn reclaim(&self) {
        let mut orphaned = self.orphaned.lock();
        orphaned.retain(|left| {
            let over = is_hung_up(&left.liveness);
            if over {
                let mut blocks = self.blocks.lock();
                for (generation, count) in &left.leases {
                    blocks.unpin(*generation, *count);
                }
            }
            !over
        });
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        ARENAS.write().remove(&self.start());
        let passed = self.passed.get_mut();
        for leases in passed.drain(..).filter_map(|leases| leases.upgrade()) {
            leases.forget(self.id);
        }
    }
}

/// Arenas of this process, by the address of the first byte.
///
/// This map finds the arena of any bytes.
static ARENAS: RwLock<BTreeMap<usize, Weak<Shared>>> = RwLock::new(BTreeMap::new());

fn find(address: usize) -> Option<Arc<Shared>> {
    let arenas = ARENAS.read();
    let (start, shared) = arenas.range(..=address).next_back()?;
    // Bytes of an arena keep it alive, so an arena that is being dropped has no bytes.
    let start = *start;
    let shared = shared.upgrade();
    // The last handle must not be dropped while the list is locked, because the drop changes the
    // list.
    drop(arenas);
    shared.filter(|shared| address < start + shared.memory.len())
}

/// `true` if the other end of a pair of sockets is closed in all processes.
fn is_hung_up(liveness: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(liveness, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut watched, Some(&at_once)).is_ok_and(|_| watched[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests;
