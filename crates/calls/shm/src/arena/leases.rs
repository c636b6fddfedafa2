//! Leases between two processes, over the Unix socket between them.
//!
//! The socket carries nothing else. A message has 16 bytes: its kind, the arena, and the capacity.
//! An arena is sent with its descriptor. The first arena is also sent with an end of the *liveness
//! socket*.

use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use rdzv_lock::Mutex;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::peer::PeerArena;
use super::{Arena, Location, Shared};
use crate::error::{Result, ShmError};
use crate::pass;

/// Maximum number of arenas passed to one peer at a time.
///
/// Bytes of further arenas are sent in another way.
const MOST_ARENAS: usize = 1024;

const MESSAGE: usize = 16;
const PASSED: [u8; 4] = *b"RZA+";
const GONE: [u8; 4] = *b"RZA-";

/// End of a Unix socket over which arenas are passed, with all leases.
#[derive(Debug)]
pub struct Leases {
    socket: OwnedFd,
    ours: Mutex<Ours>,
    theirs: Mutex<Theirs>,
}

/// Arenas that the peer can read.
#[derive(Debug, Default)]
struct Ours {
    liveness: Option<Arc<OwnedFd>>,
    arenas: BTreeMap<u32, PassedArena>,
}

/// Arena that the peer can read.
#[derive(Debug)]
struct PassedArena {
    arena: Weak<Shared>,
    /// Number of leases of each generation.
    leases: BTreeMap<u32, u64>,
    /// The arena, while it has leases.
    ///
    /// The peer may not have opened it yet, and could not find it if it were dropped.
    retained: Option<Arena>,
}

/// Arenas of the peer that are open here.
#[derive(Debug, Default)]
struct Theirs {
    liveness: Option<Arc<OwnedFd>>,
    /// Arenas by number, or the reason why an arena cannot be used.
    arenas: BTreeMap<u32, Result<Arc<PeerArena>, String>>,
}

impl Leases {
    /// Creates leases over this socket, which must not block.
    pub fn new(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            socket,
            ours: Mutex::default(),
            theirs: Mutex::default(),
        })
    }

    /// Returns the socket, which is readable for messages and at the peer's end.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Leases bytes to the peer, and returns their location.
    ///
    /// The bytes must be in an arena of this process. They do not change until the peer has
    /// released them, or has closed its liveness socket. Returns `None` if the bytes must be sent
    /// in another way.
    pub fn grant(self: &Arc<Self>, bytes: &Bytes) -> Option<Location> {
        let arena = Arena::of(bytes)?;
        let mut ours = self.ours.lock();
        if !ours.arenas.contains_key(&arena.id()) {
            self.pass(&mut ours, &arena)?;
        }
        let location = arena.pin(bytes)?;
        let leased = ours.arenas.get_mut(&location.arena)?;
        *leased.leases.entry(location.generation).or_default() += 1;
        leased.retained.get_or_insert(arena);
        Some(location)
    }

    /// Records that the peer has released one lease of this generation.
    ///
    /// Returns `false` if the peer had no such lease.
    #[must_use]
    pub fn released(&self, arena: u32, generation: u32) -> bool {
        let mut ours = self.ours.lock();
        let Some(leased) = ours.arenas.get_mut(&arena) else {
            return false;
        };
        let Some(count) = leased.leases.get_mut(&generation) else {
            return false;
        };
        *count -= 1;
        if *count == 0 {
            leased.leases.remove(&generation);
        }
        let retained = leased.retained.take_if(|_| leased.leases.is_empty());
        let arena = leased.arena.upgrade();
        // The last handle of the arena must not be dropped while this is locked.
        drop(ours);
        if let Some(arena) = arena {
            arena.unpin(generation, 1);
        }
        drop(retained);
        true
    }

    /// Returns the bytes of a lease of the peer, without a copy.
    ///
    /// `on_release` runs when the last clone is dropped, on the thread of that drop, so it must not
    /// block. `on_release` also runs if this function fails.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if the peer has not passed that arena, it cannot be mapped, or the
    /// location is not in it.
    pub fn open(
        &self,
        location: Location,
        on_release: impl FnOnce() + Send + 'static,
    ) -> Result<Bytes> {
        let mut theirs = self.theirs.lock();
        if !theirs.arenas.contains_key(&location.arena) {
            // The peer passed the arena before it sent the location.
            let _ = self.poll(&mut theirs);
        }
        let found = theirs.arenas.get(&location.arena).cloned();
        drop(theirs);
        let why_not = match found {
            Some(Ok(arena)) => return arena.slice(location, on_release),
            Some(Err(why_not)) => why_not,
            None => "the peer has not passed it".to_owned(),
        };
        on_release();
        Err(ShmError::refused("an arena", why_not))
    }

    /// `true` if the peer has closed the socket or has sent an invalid message.
    ///
    /// Handles the available messages. The system closes the socket of a peer that ends.
    pub fn has_ended(&self) -> bool {
        self.poll(&mut self.theirs.lock())
    }

    /// Forgets the arenas that both sides have passed.
    ///
    /// Leases that the peer still has last until it closes its liveness socket. The liveness socket
    /// of this process is closed when the last bytes of the peer are dropped.
    pub fn end(&self) {
        let mut ours = self.ours.lock();
        let liveness = ours.liveness.take();
        let arenas = std::mem::take(&mut ours.arenas);
        // Nothing is dropped while this is locked, because the drop of the last handle of an arena
        // would lock it again.
        drop(ours);
        if let Some(liveness) = liveness {
            for leased in arenas.into_values() {
                if let Some(arena) = leased.arena.upgrade()
                    && !leased.leases.is_empty()
                {
                    arena.orphan(Arc::clone(&liveness), leased.leases.into_iter().collect());
                }
            }
        }
        let theirs = std::mem::take(&mut *self.theirs.lock());
        drop(theirs);
    }

    /// Returns the number of arenas that the peer has passed and still has.
    pub fn arenas(&self) -> usize {
        self.theirs.lock().arenas.len()
    }

    /// Passes an arena; `None` if that is impossible, or impossible now.
    fn pass(self: &Arc<Self>, ours: &mut Ours, arena: &Arena) -> Option<()> {
        if ours.arenas.len() >= MOST_ARENAS {
            ours.arenas
                .retain(|_, leased| leased.arena.strong_count() > 0);
        }
        if ours.arenas.len() >= MOST_ARENAS {
            return None;
        }
        let new_liveness = match ours.liveness {
            Some(_) => None,
            None => Some(liveness().ok()?),
        };
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![arena.descriptor()];
        descriptors.extend(new_liveness.iter().map(|(_, theirs)| theirs.as_fd()));
        let message = message(PASSED, arena.id(), arena.capacity() as u64);
        // The socket takes a message completely or not at all. It may be full now.
        pass::send(&self.socket, &[IoSlice::new(&message)], &descriptors).ok()?;
        if let Some((own, _)) = new_liveness {
            ours.liveness = Some(Arc::new(own));
        }
        let leased = PassedArena {
            arena: Arc::downgrade(&arena.0),
            leases: BTreeMap::new(),
            retained: None,
        };
        ours.arenas.insert(arena.id(), leased);
        let mut passed = arena.0.passed.lock();
        passed.retain(|leases| leases.strong_count() > 0);
        passed.push(Arc::downgrade(self));
        Some(())
    }

    /// Notifies the peer that an arena of this process was dropped.
    pub(super) fn forget(&self, arena: u32) {
        self.ours.lock().arenas.remove(&arena);
        let message = message(GONE, arena, 0);
        // If the message is not sent, the peer keeps the memory until the connection ends.
        let _ = pass::send(&self.socket, &[IoSlice::new(&message)], &[]);
    }

    /// Handles the available messages; `true` if no more can arrive.
    fn poll(&self, theirs: &mut Theirs) -> bool {
        loop {
            let mut message = [0; MESSAGE];
            match pass::receive(&self.socket, &mut message) {
                Ok((MESSAGE, descriptors)) => {
                    if !theirs.take(message, descriptors) {
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                // The end, an error, or an invalid message ends the connection.
                Ok(_) | Err(_) => return true,
            }
        }
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.end();
    }
}

impl Theirs {
    /// Handles a message; `false` if the message is invalid.
    fn take(&mut self, message: [u8; MESSAGE], descriptors: Vec<OwnedFd>) -> bool {
        let [what, arena, low, high] = *message.as_chunks::<4>().0 else {
            return false;
        };
        let arena = u32::from_le_bytes(arena);
        let capacity =
            u64::from(u32::from_le_bytes(low)) | u64::from(u32::from_le_bytes(high)) << 32;
        let mut descriptors = descriptors.into_iter();
        match (what, descriptors.next()) {
            (PASSED, Some(file)) if self.arenas.len() < MOST_ARENAS => {
                if let Some(liveness) = descriptors.next() {
                    self.liveness = Some(Arc::new(liveness));
                }
                let liveness = self.liveness.clone();
                let capacity = usize::try_from(capacity).unwrap_or(usize::MAX);
                let opened = PeerArena::open(arena, capacity, &file, liveness);
                let opened = opened.map_err(|error| error.to_string());
                self.arenas.insert(arena, opened);
                true
            }
            (GONE, None) => {
                self.arenas.remove(&arena);
                true
            }
            _ => false,
        }
    }
}

fn message(what: [u8; 4], arena: u32, capacity: u64) -> [u8; MESSAGE] {
    let mut message = [0; MESSAGE];
    message[..4].copy_from_slice(&what);
    message[4..8].copy_from_slice(&arena.to_le_bytes());
    message[8..].copy_from_slice(&capacity.to_le_bytes());
    message
}

/// Returns this process's end, and the end that the peer keeps.
///
/// The peer keeps its end while it uses any arena.
fn liveness() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        flags,
        None,
    )?)
}

#[cfg(test)]
mod tests;
