//! The table of connections, with the events that the kernel reports for each.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use rdzv_core::ident::ConnId;
use rdzv_event::{EventFlags, Poller};

use super::admission::{Entry, Tls};

#[derive(Debug)]
pub(super) struct Socket {
    pub(super) descriptor: OwnedFd,
    pub(super) peer: Option<SocketAddr>,
    /// Stage of the connection; the store reads from it only if it is open.
    pub(super) entry: Entry,
    /// TLS session of the connection; `None` if its bytes are not encrypted.
    pub(super) tls: Option<Box<Tls>>,
    interest: EventFlags,
}

/// All connections. Ids are indexes into the table and are reused.
#[derive(Debug)]
pub(super) struct Sockets {
    poller: Poller,
    table: Vec<Option<Socket>>,
    free: Vec<u32>,
}

impl Sockets {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            table: Vec::new(),
            free: Vec::new(),
        })
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.poller
    }

    #[inline]
    pub(super) fn get(&self, id: ConnId) -> Option<&Socket> {
        self.table.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: ConnId) -> Option<&mut Socket> {
        self.table.get_mut(id.0 as usize)?.as_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() - self.free.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn ids(&self) -> Vec<ConnId> {
        let used = self.table.iter().enumerate();
        used.filter(|(_, socket)| socket.is_some())
            .map(|(index, _)| ConnId(index as u32))
            .collect()
    }

    /// Adds a connection; the kernel then reports when it is readable.
    pub(super) fn insert(
        &mut self,
        descriptor: OwnedFd,
        peer: Option<SocketAddr>,
        entry: Entry,
    ) -> io::Result<ConnId> {
        let index = self.free.last().copied();
        let id = ConnId(index.unwrap_or(self.table.len() as u32));
        let interest = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        self.poller.add(&descriptor, token(id), interest)?;
        let socket = Some(Socket {
            descriptor,
            peer,
            entry,
            tls: None,
            interest,
        });
        match self.free.pop() {
            Some(index) => self.table[index as usize] = socket,
            None => self.table.push(socket),
        }
        Ok(id)
    }

    pub(super) fn remove(&mut self, id: ConnId) -> Option<Socket> {
        let socket = self.table.get_mut(id.0 as usize)?.take()?;
        self.free.push(id.0);
        // A process that is being started holds a copy of the descriptor until it executes its
        // program. That copy would make the kernel report a connection that is no longer in the
        // table.
        self.poller.remove(&socket.descriptor);
        Some(socket)
    }

    pub(super) fn is_reading(&self, id: ConnId) -> bool {
        self.get(id)
            .is_some_and(|socket| socket.interest.contains(EventFlags::IN))
    }

    pub(super) fn set_reading(&mut self, id: ConnId, on: bool) {
        self.set_interest(id, EventFlags::IN, on);
    }

    #[inline]
    pub(super) fn set_writing(&mut self, id: ConnId, on: bool) {
        self.set_interest(id, EventFlags::OUT, on);
    }

    #[inline]
    fn set_interest(&mut self, id: ConnId, flag: EventFlags, on: bool) {
        let Some(Some(socket)) = self.table.get_mut(id.0 as usize) else {
            return;
        };
        if socket.interest.contains(flag) == on {
            return;
        }
        let mut interest = socket.interest;
        interest.set(flag, on);
        match self.poller.modify(&socket.descriptor, token(id), interest) {
            Ok(()) => socket.interest = interest,
            Err(error) => tracing::error!(peer = ?socket.peer, %error, "epoll refused a change"),
        }
    }
}

fn token(id: ConnId) -> u64 {
    u64::from(id.0)
}
