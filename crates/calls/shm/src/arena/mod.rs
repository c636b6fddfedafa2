//! Memory that is leased to peers without being copied.
//!
//! ```text
//!   owner                                             peer
//!   Arena::new(capacity)
//!   allocate(length) ─► Block, filled, frozen ─► Bytes
//!   leases.grant(&bytes) ─► Location ── each ──────► leases.open(location, on_release) ─► Bytes
//!       passes the arena the first time ── once ────►     maps it
//!   leases.released(location)          ◄── later ──  on_release, when the last clone is dropped
//! ```
//!
//! A block is free again when the last clone of its bytes is dropped here, and every lease of it is
//! over: because the peer has released it, or because it can have it no more. A connection that is
//! lost does not end a lease, since the peer still has bytes that must not change; that it has let
//! go of all of them, or has ended, shows at the other end of a pair of sockets (the *liveness
//! socket*).
//!
//! Only the owner can write: the seals let nobody else map the memory for writing. That it does not
//! write what it has leased is a promise between processes of one user, which no seal can enforce;
//! a peer that does not trust the owner has to copy.

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

/// Memory of this process that can be leased. Clones are the same arena.
#[derive(Debug, Clone)]
pub struct Arena(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    id: u32,
    memory: Memory,
    file: OwnedFd,
    blocks: Mutex<Blocks>,
    /// To whom it was passed: they are told when it is gone.
    passed: Mutex<Vec<Weak<Leases>>>,
    /// Loans to those whose connection is over, and who may still have them.
    orphaned: Mutex<Vec<Orphaned>>,
}

/// Loans that nobody can return any more.
#[derive(Debug)]
struct Orphaned {
    /// Hung up when the peer has let go of everything.
    liveness: Arc<OwnedFd>,
    /// The number of leases of each generation.
    leases: Vec<(u32, u64)>,
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

    /// The arena of this process that these bytes lie in, if they are part of a frozen block.
    pub fn of(bytes: &Bytes) -> Option<Self> {
        if bytes.is_empty() {
            return None;
        }
        find(bytes.as_ptr() as usize).map(Self)
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
        self.0.reclaim();
        self.0.blocks.lock().free()
    }

    /// What peers need to read it; they cannot write.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }

    /// Memory to fill and then freeze; nothing if there is not enough left. What is in it is left over
    /// from earlier uses.
    pub fn allocate(&self, length: usize) -> Option<Block> {
        self.0.reclaim();
        let offset = self.0.blocks.lock().allocate(length)?;
        Some(Block {
            arena: Arc::clone(&self.0),
            offset,
            length,
        })
    }

    /// Notes another lease of these bytes, which lie here.
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
    /// The address of its first byte.
    fn start(&self) -> usize {
        self.memory.start() as usize
    }

    fn unpin(&self, generation: u32, count: u64) {
        self.blocks.lock().unpin(generation, count);
    }

    /// Keeps leases until the peer has let go of them.
    fn orphan(&self, liveness: Arc<OwnedFd>, leases: Vec<(u32, u64)>) {
        let orphaned = Orphaned { liveness, leases };
        self.orphaned.lock().push(orphaned);
    }

    /// Ends the leases whose liveness socket is closed. Runs before each allocation.
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

/// The arenas of this process, by the address of the first byte: bytes are recognised wherever they come
/// from.
static ARENAS: RwLock<BTreeMap<usize, Weak<Shared>>> = RwLock::new(BTreeMap::new());

/// The arena in which this address is.
fn find(address: usize) -> Option<Arc<Shared>> {
    let arenas = ARENAS.read();
    let (start, shared) = arenas.range(..=address).next_back()?;
    // Bytes of an arena keep it alive: one that is being dropped has none.
    let start = *start;
    let shared = shared.upgrade();
    // Its last handle must not be dropped while the list is locked, since it would leave it.
    drop(arenas);
    shared.filter(|shared| address < start + shared.memory.length())
}

/// Whether the other end of a pair of sockets is closed, in all processes.
fn is_hung_up(liveness: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(liveness, PollFlags::empty())];
    let at_once = Timespec::default();
    poll(&mut watched, Some(&at_once)).is_ok_and(|_| watched[0].revents().contains(PollFlags::HUP))
}

#[cfg(test)]
mod tests;
