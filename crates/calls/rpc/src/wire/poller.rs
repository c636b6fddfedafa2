//! The poller of the driver: one epoll instance for all connections of an agent.
//!
//! Descriptors are armed for one event at a time (`EPOLLONESHOT`). While somebody reads a
//! connection it is not armed, so that the driver is not woken for what is being taken already.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use rdzv_event::{EventFlags, Waker};
use rdzv_lock::Mutex;

use crate::transport::Readiness;

/// A connection of this agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(u64);

/// Something that the driver waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A thread woke the driver.
    Wake,
    /// Somebody connects.
    Knock,
    /// A connection has frames.
    Frames(LinkId),
    /// A connection has room.
    Room(LinkId),
}

thread_local! {
    static DRIVER: Cell<bool> = const { Cell::new(false) };
}

/// `true` if this thread is the driver of an agent.
pub(crate) fn is_driver() -> bool {
    DRIVER.get()
}

/// From now on this thread is the driver of an agent.
pub(crate) fn become_driver() {
    DRIVER.set(true);
}

/// The epoll instance, and the connections in it.
pub(crate) struct Poller<E: ?Sized> {
    poller: rdzv_event::Poller,
    waker: Waker,
    endpoints: Mutex<BTreeMap<LinkId, Arc<E>>>,
    /// Connections over which something borrowed is to be given back.
    returning: Mutex<Vec<LinkId>>,
    next: AtomicU64,
}

/// Numbers of events: two bits say what kind, the others which one.
const WAKE: u64 = 0;
const KNOCK: u64 = 1;
const FRAMES: u64 = 2;
const ROOM: u64 = 3;

impl<E: ?Sized> Poller<E> {
    pub(crate) fn new() -> io::Result<Self> {
        let poller = rdzv_event::Poller::new()?;
        let waker = Waker::new()?;
        poller.add(&waker, WAKE, EventFlags::IN)?;
        Ok(Self {
            poller,
            waker,
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
        self.poller.add(listener, KNOCK, EventFlags::IN)
    }

    /// Does not wait at the listener any more.
    pub(crate) fn deafen(&self, listener: impl AsFd) {
        self.poller.remove(listener);
    }

    /// Takes a connection into the set. Nothing is armed yet.
    pub(crate) fn adopt(
        &self,
        id: LinkId,
        (readable, writable): (&OwnedFd, &OwnedFd),
        endpoint: Arc<E>,
    ) -> io::Result<()> {
        for (descriptor, what) in [(readable, FRAMES), (writable, ROOM)] {
            let token = id.0 << 2 | what;
            self.poller.add(descriptor, token, EventFlags::ONESHOT)?;
        }
        self.endpoints.lock().insert(id, endpoint);
        Ok(())
    }

    /// The connection of this number, if it is still there.
    pub(crate) fn endpoint(&self, id: LinkId) -> Option<Arc<E>> {
        self.endpoints.lock().get(&id).map(Arc::clone)
    }

    /// All connections.
    pub(crate) fn all(&self) -> Vec<Arc<E>> {
        self.endpoints.lock().values().map(Arc::clone).collect()
    }

    /// Waits for frames of this connection, once.
    pub(crate) fn await_frames(&self, id: LinkId, readable: &OwnedFd) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        self.arm(readable, id.0 << 2 | FRAMES, flags)
    }

    /// Does not wait for frames of this connection: somebody else does.
    pub(crate) fn disarm_frames(&self, id: LinkId, readable: &OwnedFd) -> io::Result<()> {
        self.arm(readable, id.0 << 2 | FRAMES, EventFlags::ONESHOT)
    }

    /// Waits for room in this connection, once.
    pub(crate) fn await_room(
        &self,
        id: LinkId,
        writable: &OwnedFd,
        room: Readiness,
    ) -> io::Result<()> {
        let flags = match room {
            Readiness::Readable => EventFlags::IN,
            Readiness::Writable => EventFlags::OUT,
        };
        self.arm(writable, id.0 << 2 | ROOM, flags | EventFlags::ONESHOT)
    }

    fn arm(&self, descriptor: &OwnedFd, token: u64, flags: EventFlags) -> io::Result<()> {
        match self.poller.modify(descriptor, token, flags) {
            // It was removed meanwhile, since the connection is over.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Takes a connection out of the set.
    pub(crate) fn forget(&self, id: LinkId, descriptors: [&OwnedFd; 2]) {
        for descriptor in descriptors {
            self.poller.remove(descriptor);
        }
        self.endpoints.lock().remove(&id);
    }

    /// Wakes the driver.
    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Has the driver give back what was borrowed over this connection.
    pub(crate) fn give_back(&self, link: LinkId) {
        self.returning.lock().push(link);
        self.wake();
    }

    /// The connections over which something is to be given back.
    pub(crate) fn take_returning(&self) -> Vec<Arc<E>> {
        let returning = std::mem::take(&mut *self.returning.lock());
        let endpoints = self.endpoints.lock();
        let there = returning.iter().filter_map(|id| endpoints.get(id));
        there.map(Arc::clone).collect()
    }

    /// Waits until something happens, or until then.
    pub(crate) fn wait(&self, until: Option<Instant>, into: &mut Vec<Happening>) -> io::Result<()> {
        into.clear();
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let mut events = Vec::with_capacity(64);
        self.poller.wait(&mut events, left)?;
        for event in &events {
            let token = event.data.u64();
            into.push(match token & 3 {
                WAKE => {
                    self.waker.drain();
                    Happening::Wake
                }
                KNOCK => Happening::Knock,
                FRAMES => Happening::Frames(LinkId(token >> 2)),
                _ => Happening::Room(LinkId(token >> 2)),
            });
        }
        Ok(())
    }
}
