//! Accepting, reading and writing.

use std::io::IoSlice;
use std::net::SocketAddr;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_event::EventFlags;
use rdzv_store_proto::server::{CloseReason, Input};
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, acceptfrom_with, recv, send,
    sendmsg, shutdown,
};

use super::Service;

/// Connections accepted in one iteration before the others are served.
const ACCEPT_BATCH: usize = 256;

/// Parts sent with one system call.
const SEND_PARTS: usize = 64;

/// Bytes read from one connection while a purge makes sure that nothing is left unread. More can
/// only come from a client that keeps sending, and that is not what a purge is about.
const PURGE_READ_BYTES: usize = 64 << 20;

/// The result of a read.
enum Read {
    Some {
        count: usize,
        /// The buffer is full, so there may be more.
        filled: bool,
    },
    Nothing,
    Gone,
}

impl Service {
    /// Accepts what is pending, up to a batch.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            if !self.accept_one(listener) {
                return;
            }
        }
    }

    /// Accepts everything that is pending.
    pub(super) fn accept_all(&mut self) {
        for listener in 0..self.listeners.len() {
            while self.accept_one(listener) {}
        }
    }

    /// Accepts one connection; false if there is none or none can be taken in.
    fn accept_one(&mut self, listener: usize) -> bool {
        let Some(listener) = self.listeners.get(listener) else {
            return false;
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (descriptor, peer) = match acceptfrom_with(listener, flags) {
            Ok(accepted) => accepted,
            Err(Errno::INTR | Errno::CONNABORTED) => return true,
            Err(Errno::AGAIN) => return false,
            Err(error) => {
                // The connection stays pending, and the kernel would go on reporting it.
                tracing::warn!(
                    %error,
                    connections = self.machine.stats().connections,
                    "the store server cannot accept a connection; raise the limit of open files \
                     (ulimit -n)"
                );
                self.set_accepting(false);
                return false;
            }
        };
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        match self.sockets.insert(descriptor, peer) {
            Ok(id) => self.handle(Input::Connected(id)),
            Err(error) => {
                tracing::warn!(?peer, %error, "the store server cannot watch a connection");
            }
        }
        true
    }

    /// The kernel reports that a connection can be read from or written to, or is broken.
    #[inline]
    pub(super) fn ready(&mut self, id: ConnId, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(id);
            self.apply_outputs();
        }
        if self.sockets.is_reading(id) {
            let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            if flags.intersects(EventFlags::IN | ends) {
                self.read(id, flags.intersects(ends));
            }
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // Its replies will not be taken any more, which is what it is paused for.
            self.forget(id);
        }
    }

    /// Reads once and has the requests executed. `ending`: the peer's end will not be reported
    /// again, so reading goes on until it is there.
    #[inline]
    fn read(&mut self, id: ConnId, ending: bool) {
        match self.read_once(id) {
            Read::Some { .. } if ending => {
                self.again.push((id, EventFlags::IN | EventFlags::RDHUP));
            }
            Read::Some { filled: true, .. } => self.again.push((id, EventFlags::IN)),
            Read::Some { .. } | Read::Nothing => {}
            Read::Gone => self.forget(id),
        }
    }

    /// Reads until nothing is left.
    pub(super) fn read_all(&mut self, id: ConnId) {
        let mut total = 0;
        while total < PURGE_READ_BYTES {
            match self.read_once(id) {
                Read::Some { count, .. } => total += count,
                Read::Nothing => return,
                Read::Gone => return self.forget(id),
            }
        }
    }

    #[inline]
    fn read_once(&mut self, id: ConnId) -> Read {
        let Some(socket) = self.sockets.get(id) else {
            return Read::Nothing;
        };
        // Whether a large value is arriving, which is then read to where it stays.
        let landed = self.machine.space(id).map(|space| {
            recv(
                &socket.descriptor,
                spare_capacity(space),
                RecvFlags::empty(),
            )
            .map(|(count, _)| (count, space.len() == space.capacity()))
        });
        let lands = landed.is_some();
        let received = landed.unwrap_or_else(|| {
            recv(
                &socket.descriptor,
                &mut self.scratch[..],
                RecvFlags::empty(),
            )
            .map(|(count, _)| (count, count == self.scratch.len()))
        });
        match received {
            Ok((0, _)) => Read::Gone,
            Ok((count, filled)) => {
                self.traffic.received_bytes += count as u64;
                let input = match lands {
                    true => Input::Landed(id),
                    false => Input::Bytes(id, &self.scratch[..count]),
                };
                self.machine.handle(self.now, input);
                self.apply_outputs();
                Read::Some { count, filled }
            }
            Err(Errno::AGAIN) => Read::Nothing,
            Err(Errno::INTR) => Read::Some {
                count: 0,
                filled: true,
            },
            Err(error) => {
                tracing::debug!(peer = ?socket.peer, %error, "a store connection broke");
                Read::Gone
            }
        }
    }

    /// Sends unsent replies once; what is left goes when the kernel reports that there is room.
    #[inline]
    pub(super) fn flush(&mut self, id: ConnId) {
        let Some((sent, wanted, more)) = self.send_once(id) else {
            return;
        };
        match sent {
            Ok(count) => {
                self.traffic.sent_bytes += count as u64;
                self.sockets.set_writing(id, more || count < wanted);
                self.machine.handle(self.now, Input::Sent(id, count));
            }
            Err(Errno::AGAIN | Errno::INTR) => self.sockets.set_writing(id, true),
            Err(error) => {
                let peer = self.sockets.get(id).and_then(|socket| socket.peer);
                tracing::debug!(?peer, %error, "a store connection broke");
                self.forget_quietly(id);
            }
        }
    }

    /// One attempt to send: its result, how much was tried, and whether there is more.
    #[inline]
    fn send_once(&self, id: ConnId) -> Option<(Result<usize, Errno>, usize, bool)> {
        let socket = self.sockets.get(id)?;
        if let Some(unsent) = self.machine.unsent_in_one(id) {
            if unsent.is_empty() {
                return None;
            }
            let sent = send(&socket.descriptor, unsent, SendFlags::NOSIGNAL);
            return Some((sent, unsent.len(), false));
        }
        let mut parts = self.machine.unsent(id);
        let mut slices = [IoSlice::new(&[]); SEND_PARTS];
        let mut count = 0;
        for (slice, part) in slices.iter_mut().zip(&mut parts) {
            *slice = IoSlice::new(part);
            count += 1;
        }
        let wanted = slices[..count].iter().map(|slice| slice.len()).sum();
        let mut nothing = SendAncillaryBuffer::default();
        let sent = sendmsg(
            &socket.descriptor,
            &slices[..count],
            &mut nothing,
            SendFlags::NOSIGNAL,
        );
        Some((sent, wanted, parts.next().is_some()))
    }

    /// Closes a connection for a reason, after a last attempt to send what it was answered.
    pub(super) fn close(&mut self, id: ConnId, reason: &CloseReason) {
        if let Some(socket) = self.sockets.get(id) {
            let peer = socket.peer.map(|peer| peer.to_string());
            let peer = peer.as_deref().unwrap_or("an unknown address");
            tracing::warn!("the store server closes the connection from {peer}: {reason}");
        }
        let _ = self.send_once(id);
        self.forget_quietly(id);
    }

    /// The peer has left or the connection broke.
    fn forget(&mut self, id: ConnId) {
        self.forget_quietly(id);
        self.apply_outputs();
    }

    /// Like [`Service::forget`], for use while outputs are applied.
    fn forget_quietly(&mut self, id: ConnId) {
        if self.sockets.remove(id).is_some() {
            self.machine.handle(self.now, Input::Closed(id));
            if self.accept_again.is_some() {
                self.set_accepting(true);
            }
        }
    }

    /// Ends all connections so that what was sent to them still reaches them: closing a socket
    /// with unread input would reset the connection instead.
    pub(super) fn leave(&mut self) {
        for id in self.sockets.ids() {
            let _ = self.send_once(id);
            let Some(socket) = self.sockets.remove(id) else {
                continue;
            };
            let _ = shutdown(&socket.descriptor, Shutdown::Write);
            let mut left = PURGE_READ_BYTES;
            while let Ok((count @ 1.., _)) = recv(
                &socket.descriptor,
                &mut self.scratch[..],
                RecvFlags::empty(),
            ) && left > 0
            {
                left = left.saturating_sub(count);
            }
        }
    }
}
