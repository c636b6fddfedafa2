//! The poller of the driver: one epoll set for all connections of an agent.
//!
//! Each descriptor of a connection is armed for one event (`EPOLLONESHOT`). The driver does not
//! wake up for frames that another thread reads, because that thread disarms the descriptor. The
//! thread leaves the descriptor armed if arriving bytes do not signal it while a reader is awake.

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

/// Identifier of a connection within an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LinkId(u64);

/// Event that the driver waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Happening {
    /// A thread woke the driver.
    Wake,
    /// The listener has work, such as a new peer.
    Knock,
    Frames(LinkId),
    Room(LinkId),
}

thread_local! {
    static DRIVER: Cell<bool> = const { Cell::new(false) };
}

/// `true` if this thread is the driver of an agent.
pub(crate) fn is_driver() -> bool {
    DRIVER.get()
}

/// Marks this thread as the driver of an agent.
pub(crate) fn become_driver() {
    DRIVER.set(true);
}

/// An epoll instance and the connections in it.
pub(crate) struct Poller<E: ?Sized> {
    poller: rdzv_event::Poller,
    waker: Waker,
    endpoints: Mutex<BTreeMap<LinkId, Arc<E>>>,
    /// Connections over which borrowed memory must be returned.
    returning: Mutex<Vec<LinkId>>,
    next: AtomicU64,
}

/// Event kinds: the two low bits of a token; the other bits identify the link.
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

    /// Starts to wait for new connections at the listener.
    pub(crate) fn listen(&self, listener: impl AsFd) -> io::Result<()> {
        self.poller.add(listener, KNOCK, EventFlags::IN)
    }

    /// Stops waiting for new connections at the listener.
    pub(crate) fn deafen(&self, listener: impl AsFd) {
        self.poller.remove(listener);
    }

    /// Adds a connection to the set. It is not armed yet.
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

    /// Returns the connection with this identifier, if it is still in the set.
    pub(crate) fn endpoint(&self, id: LinkId) -> Option<Arc<E>> {
        self.endpoints.lock().get(&id).map(Arc::clone)
    }

    pub(crate) fn all(&self) -> Vec<Arc<E>> {
        self.endpoints.lock().values().map(Arc::clone).collect()
    }

    /// Arms the driver for the next frames of this connection, once.
    pub(crate) fn await_frames(&self, id: LinkId, readable: &OwnedFd) -> io::Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ONESHOT;
        self.arm(readable, id.0 << 2 | FRAMES, flags)
    }

    /// Disarms the driver for frames of this connection; another thread reads them.
    pub(crate) fn disarm_frames(&self, id: LinkId, readable: &OwnedFd) -> io::Result<()> {
        self.arm(readable, id.0 << 2 | FRAMES, EventFlags::ONESHOT)
    }

    /// Arms the driver for room to send on this connection, once.
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
            // The connection ended, so another thread has removed the descriptor.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    /// Removes a connection from the set.
    pub(crate) fn forget(&self, id: LinkId, descriptors: [&OwnedFd; 2]) {
        for descriptor in descriptors {
            self.poller.remove(descriptor);
        }
        self.endpoints.lock().remove(&id);
    }

    pub(crate) fn wake(&self) {
        self.waker.wake();
    }

    /// Makes the driver return the memory borrowed over this connection.
    pub(crate) fn give_back(&self, link: LinkId) {
        self.returning.lock().push(link);
        self.wake();
    }

    /// Drains the connections over which borrowed memory must be returned.
    pub(crate) fn take_returning(&self) -> Vec<Arc<E>> {
        let returning = std::mem::take(&mut *self.returning.lock());
        let endpoints = self.endpoints.lock();
        let there = returning.iter().filter_map(|id| endpoints.get(id));
        there.map(Arc::clone).collect()
    }

    /// Waits for events until the deadline.
    pub(crate) fn wait(
        &self,
        deadline: Option<Instant>,
        into: &mut Vec<Happening>,
    ) -> io::Result<()> {
        into.clear();
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
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
