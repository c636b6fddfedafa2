//! The leases between two processes, over the Unix socket between them.
//!
//! The socket carries nothing else. A message has 16 bytes: what it is, the arena, its capacity. An
//! arena comes with its descriptor, and the first one with an end of the *liveness socket* too.

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

/// The most arenas that are passed to one peer; bytes of others are sent in another way.
const MOST_ARENAS: usize = 1024;

const MESSAGE: usize = 16;
const PASSED: [u8; 4] = *b"RZA+";
const GONE: [u8; 4] = *b"RZA-";

/// One end of a Unix socket over which arenas are passed, and what is leased in each direction.
#[derive(Debug)]
pub struct Leases {
    socket: OwnedFd,
    ours: Mutex<Ours>,
    theirs: Mutex<Theirs>,
}

/// The arenas that the peer can read.
#[derive(Debug, Default)]
struct Ours {
    liveness: Option<Arc<OwnedFd>>,
    arenas: BTreeMap<u32, PassedArena>,
}

/// An arena that the peer can read.
#[derive(Debug)]
struct PassedArena {
    arena: Weak<Shared>,
    /// How many leases there are of each generation.
    leases: BTreeMap<u32, u64>,
    /// As long as there are any, also if nobody else here has it: the peer may not have opened it
    /// yet, and would not find it any more.
    retained: Option<Arena>,
}

/// The arenas of the peer that are open here.
#[derive(Debug, Default)]
struct Theirs {
    liveness: Option<Arc<OwnedFd>>,
    /// Or why one cannot be used.
    arenas: BTreeMap<u32, Result<Arc<PeerArena>, String>>,
}

impl Leases {
    /// Over this socket, which must not block.
    pub fn new(socket: OwnedFd) -> Arc<Self> {
        Arc::new(Self {
            socket,
            ours: Mutex::default(),
            theirs: Mutex::default(),
        })
    }

    /// The socket. It is readable when there is a message, or the peer has ended.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Leases bytes to the peer if they lie in an arena of this process, and returns their
    /// location. They do not change until the peer has released them, or has closed its liveness
    /// socket. None if they have to be sent in another way.
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

    /// The peer has released one lease of this generation. False if it had none.
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
        // Its last handle must not be dropped while this is locked.
        drop(ours);
        if let Some(arena) = arena {
            arena.unpin(generation, 1);
        }
        drop(retained);
        true
    }

    /// The bytes of a lease of the peer, without a copy.
    ///
    /// `on_release` runs when the last clone is dropped, on whichever thread that is: it must not
    /// wait. It runs also if this fails.
    ///
    /// # Errors
    ///
    /// [`ShmError::Refused`] if the peer has not passed that arena, it cannot be mapped, or the
    /// place is not in it.
    pub fn open(
        &self,
        location: Location,
        on_release: impl FnOnce() + Send + 'static,
    ) -> Result<Bytes> {
        let mut theirs = self.theirs.lock();
        if !theirs.arenas.contains_key(&location.arena) {
            // It was passed before the words about it were sent.
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

    /// `true` if the peer has ended, or has closed.
    ///
    /// Takes the messages that are there.
    pub fn has_ended(&self) -> bool {
        self.poll(&mut self.theirs.lock())
    }

    /// Grants no leases from now on.
    ///
    /// Those that the peer still has last until it closes its liveness socket; ours is closed when
    /// the last bytes of the peer are dropped.
    pub fn end(&self) {
        let mut ours = self.ours.lock();
        let liveness = ours.liveness.take();
        let arenas = std::mem::take(&mut ours.arenas);
        // Nothing is dropped while this is locked: the last handle of an arena would come back
        // here.
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

    /// How many arenas of the peer are mapped.
    pub fn arenas(&self) -> usize {
        self.theirs.lock().arenas.len()
    }

    /// Passes an arena; none if it cannot be passed, or not now.
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
        // A message is taken whole or not at all, and if the socket is full, it is not now.
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

    /// An arena of this process is gone.
    pub(super) fn forget(&self, arena: u32) {
        self.ours.lock().arenas.remove(&arena);
        let message = message(GONE, arena, 0);
        // If it is not told, the peer keeps the memory until the connection ends.
        let _ = pass::send(&self.socket, &[IoSlice::new(&message)], &[]);
    }

    /// Takes the messages that are there. True if no more can come.
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
                // The end, an error, or words that make no sense: in each case it is over.
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
    /// False if the message makes no sense.
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

/// Our end, and the one that the peer keeps as long as it has anything of us.
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
