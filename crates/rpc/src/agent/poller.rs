//! What the driver waits with: one epoll set for all connections of an agent.
//!
//! Descriptors are armed for one event at a time (`EPOLLONESHOT`). While somebody reads a connection
//! it is not armed, so that the driver is not woken for what is being taken already.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use crate::connection::link::{Endpoint, Link};
use crate::transport::Readiness;

/// A connection of this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(u64);

/// Something that the driver waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    /// Somebody rang.
    Bell,
    /// Somebody connects.
    Knock,
    /// A connection has frames.
    Frames(LinkId),
    /// A connection has room.
    Room(LinkId),
}

/// The epoll set, and the connections in it.
pub(crate) struct Poller {
    epoll: OwnedFd,
    bell: OwnedFd,
    endpoints: Mutex<BTreeMap<LinkId, Arc<dyn Endpoint>>>,
    /// Connections over which something borrowed is to be given back.
    returning: Mutex<Vec<LinkId>>,
    next: AtomicU64,
}

/// Numbers of events: two bits say what kind, the others which one.
const BELL: u64 = 0;
const KNOCK: u64 = 1;
const FRAMES: u64 = 2;
const ROOM: u64 = 3;

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(
            &epoll,
            &bell,
            epoll::EventData::new_u64(BELL),
            epoll::EventFlags::IN,
        )?;
        Ok(Self {
            epoll,
            bell,
            endpoints: Mutex::new(BTreeMap::new()),
            returning: Mutex::default(),
            next: AtomicU64::new(0),
        })
    }

    pub(crate) fn new_id(&self) -> LinkId {
        LinkId(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits for connections at the listener.
    pub(crate) fn listen(&self, listener: impl AsFd) -> io::Result<()> {
        let data = epoll::EventData::new_u64(KNOCK);
        Ok(epoll::add(
            &self.epoll,
            listener,
            data,
            epoll::EventFlags::IN,
        )?)
    }

    /// Does not wait at the listener any more.
    pub(crate) fn deafen(&self, listener: impl AsFd) {
        // It fails only if it was not added, which is what is wanted.
        let _ = epoll::delete(&self.epoll, listener);
    }

    /// Takes a connection into the set. Nothing is armed yet.
    pub(crate) fn adopt(&self, endpoint: Arc<dyn Endpoint>) -> io::Result<()> {
        let link = endpoint.link();
        let id = link.id();
        for (descriptor, what) in [(link.readable(), FRAMES), (link.writable(), ROOM)] {
            let data = epoll::EventData::new_u64(id.0 << 2 | what);
            epoll::add(&self.epoll, descriptor, data, epoll::EventFlags::ONESHOT)?;
        }
        self.endpoints().insert(id, endpoint);
        Ok(())
    }

    /// The connection of this number, if it is still there.
    pub(crate) fn endpoint(&self, id: LinkId) -> Option<Arc<dyn Endpoint>> {
        self.endpoints().get(&id).map(Arc::clone)
    }

    /// All connections.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Endpoint>> {
        self.endpoints().values().map(Arc::clone).collect()
    }

    /// Waits for frames of this connection, once.
    pub(crate) fn await_frames(&self, link: &Link) -> io::Result<()> {
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | epoll::EventFlags::ONESHOT;
        self.arm(link.readable(), link.id().0 << 2 | FRAMES, flags)
    }

    /// Does not wait for frames of this connection: somebody else does.
    pub(crate) fn disarm_frames(&self, link: &Link) -> io::Result<()> {
        let token = link.id().0 << 2 | FRAMES;
        self.arm(link.readable(), token, epoll::EventFlags::ONESHOT)
    }

    /// Waits for room in this connection, once.
    pub(crate) fn await_room(&self, link: &Link) -> io::Result<()> {
        let flags = match link.room() {
            Readiness::Readable => epoll::EventFlags::IN,
            Readiness::Writable => epoll::EventFlags::OUT,
        };
        let token = link.id().0 << 2 | ROOM;
        self.arm(link.writable(), token, flags | epoll::EventFlags::ONESHOT)
    }

    fn arm(&self, descriptor: &OwnedFd, token: u64, flags: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        match epoll::modify(&self.epoll, descriptor, data, flags) {
            // It was forgotten meanwhile, since the connection is over.
            Err(rustix::io::Errno::NOENT) => Ok(()),
            result => Ok(result?),
        }
    }

    /// Takes a connection out of the set.
    pub(crate) fn forget(&self, link: &Link) {
        for descriptor in [link.readable(), link.writable()] {
            let _ = epoll::delete(&self.epoll, descriptor);
        }
        self.endpoints().remove(&link.id());
    }

    /// Has the driver look around, wherever it is.
    pub(crate) fn ring(&self) {
        // It fails only if the count is at its end, and then it rings anyway.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Has the driver give back what was borrowed over this connection.
    pub(crate) fn give_back(&self, link: LinkId) {
        self.returning().push(link);
        self.ring();
    }

    /// The connections over which something is to be given back.
    pub(crate) fn take_returning(&self) -> Vec<Arc<dyn Endpoint>> {
        let returning = std::mem::take(&mut *self.returning());
        let endpoints = self.endpoints();
        let there = returning.iter().filter_map(|id| endpoints.get(id));
        there.map(Arc::clone).collect()
    }

    /// Waits until something happens, or until then.
    pub(crate) fn wait(&self, until: Option<Instant>, into: &mut Vec<Happening>) -> io::Result<()> {
        into.clear();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = left.map(timespec);
        let mut events = Vec::with_capacity(64);
        match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let token = event.data.u64();
            into.push(match token & 3 {
                BELL => {
                    let _ = rustix::io::read(&self.bell, &mut [0_u8; 8]);
                    Happening::Bell
                }
                KNOCK => Happening::Knock,
                FRAMES => Happening::Frames(LinkId(token >> 2)),
                _ => Happening::Room(LinkId(token >> 2)),
            });
        }
        Ok(())
    }

    fn returning(&self) -> std::sync::MutexGuard<'_, Vec<LinkId>> {
        self.returning
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn endpoints(&self) -> std::sync::MutexGuard<'_, BTreeMap<LinkId, Arc<dyn Endpoint>>> {
        self.endpoints
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// At least so long: rounded up to what the kernel counts in.
fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: duration.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: duration.subsec_nanos().into(),
    }
}
