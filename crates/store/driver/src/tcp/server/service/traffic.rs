//! Accepting, reading and writing.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_event::EventFlags;
use rdzv_store_proto::server::{CloseReason, Input};
use rdzv_trust::handshake;
use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::sockopt::socket_error;
use rustix::net::{
    RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, SocketFlags, acceptfrom_with, recv, send,
    sendmsg, shutdown,
};

use super::{Service, notices};
use crate::tcp::server::admission::{Entry, Step, Tls};
use crate::tcp::server::keep_alive::KeepAlive;

/// Maximum number of connections accepted from each socket in one iteration.
const ACCEPT_BATCH: usize = 256;

/// Maximum number of parts sent with one system call.
const SEND_PARTS: usize = 64;

/// Maximum number of bytes read into a large value, or sent, per system call.
/// The kernel can hold megabytes for one connection, and copying those takes a millisecond.
const COPY_BYTES: usize = 256 << 10;

/// Number of bytes after which a purge stops reading from a connection.
/// A purge makes sure that nothing is left unread. Only a client that keeps sending has more, and a
/// purge does not concern such a client.
const PURGE_READ_BYTES: usize = 16 << 20;

/// Maximum number of connections accepted from each socket at a purge.
/// The kernel queues a few thousand at most.
const PURGE_ACCEPT: usize = 16 << 10;

/// Number of addresses in a log line about descriptors.
const SHOWN_ADDRESSES: usize = 5;

enum Read {
    Some {
        count: usize,
        /// `true` if the buffer is full, so there may be more.
        filled: bool,
    },
    Nothing,
    Gone,
}

impl Service {
    /// Accepts pending connections, up to a batch.
    pub(super) fn accept(&mut self, listener: usize) {
        for _ in 0..ACCEPT_BATCH {
            if !self.accept_one(listener) || self.descriptors.are_scarce() {
                return;
            }
        }
    }

    /// Closes connections without a request, if descriptors are scarce.
    /// Each connection that was reported as readable in this iteration has been read once.
    pub(super) fn make_room(&mut self) {
        let Some(beyond) = self.descriptors.take_beyond() else {
            return;
        };
        let closed = self.machine.stats().refused_for_descriptors;
        self.handle(Input::DescriptorsShort(beyond));
        if self.machine.stats().refused_for_descriptors == closed && self.descriptors.are_scarce() {
            self.set_accepting(false);
        }
        if beyond > 0 {
            self.tell_short();
        }
    }

    fn tell_short(&mut self) {
        if self.notices.is_short(self.now.mono) {
            let (used, stats) = (self.descriptors.shown(), self.machine.stats());
            let holders = self.machine.busiest_addresses(SHOWN_ADDRESSES);
            notices::short_of_descriptors(&used, stats, &holders);
        }
    }

    pub(super) fn accept_all(&mut self) {
        for listener in 0..self.listeners.len() {
            let accepted = |_: &usize| self.accept_one(listener);
            (0..PURGE_ACCEPT).take_while(accepted).for_each(drop);
        }
    }

    /// Accepts one connection; `false` if there is none or it cannot be accepted.
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
                // The connection stays pending, and the kernel would continue to report it.
                match error {
                    Errno::MFILE => self.descriptors.refused(),
                    _ => self.notices.cannot_accept(self.now.mono, error),
                }
                self.set_accepting(false);
                return false;
            }
        };
        self.descriptors.taken(&descriptor);
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        match self.sockets.insert(descriptor, peer, self.gate.entry()) {
            Ok(id) => self.handle(Input::Connected(id, peer.map(|peer| peer.ip()))),
            Err(error) => {
                tracing::warn!(?peer, %error, "the store server cannot watch a connection");
            }
        }
        true
    }

    /// Handles the kernel's report on a connection.
    /// The connection is readable, writable or broken.
    #[inline]
    pub(super) fn ready(&mut self, id: ConnId, flags: EventFlags) {
        if flags.contains(EventFlags::OUT) {
            self.flush(id);
            self.apply_outputs();
        }
        if self.sockets.is_reading(id) {
            let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
            let advances = || flags.contains(EventFlags::OUT) && !self.is_open(id);
            if flags.intersects(EventFlags::IN | ends) || advances() {
                self.read(id, flags.intersects(ends));
            }
        } else if flags.intersects(EventFlags::HUP | EventFlags::ERR) {
            // The peer will not read its replies, and the server has stopped reading its requests.
            if let Some(socket) = self.sockets.get(id)
                && let Ok(Err(error)) = socket_error(&socket.descriptor)
            {
                self.note_broken(id, error);
            }
            self.forget(id);
        }
    }

    /// Reads once and passes the requests to the machine.
    /// `ending` means that the kernel will not report the peer's end again, so reading continues
    /// until the end has arrived.
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

    /// Reads until nothing is left, or up to [`PURGE_READ_BYTES`].
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
        let Some(socket) = self.sockets.get_mut(id) else {
            return Read::Nothing;
        };
        if !matches!(socket.entry, Entry::Open) {
            return self.enter(id);
        }
        // A large value that is arriving is read directly into its final buffer.
        let space = self.machine.space(id);
        let lands = space.is_some();
        let received = match (space, &mut socket.tls) {
            (Some(space), None) => land(&socket.descriptor, space),
            (Some(space), Some(tls)) => decrypted(tls.read_to(space)),
            (None, None) => receive(&socket.descriptor, &mut self.scratch),
            (None, Some(tls)) => decrypted(tls.read(&mut self.scratch)),
        };
        match received {
            Ok((0, _)) => {
                let end = Input::EndOfStream(id, socket.peer);
                self.machine.handle(self.now, end);
                self.apply_outputs();
                Read::Gone
            }
            Ok((count, filled)) => {
                self.traffic.received_bytes += count as u64;
                let input = if lands {
                    Input::Landed(id)
                } else {
                    Input::Bytes(id, &self.scratch[..count])
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
                self.note_broken(id, error);
                Read::Gone
            }
        }
    }

    fn is_open(&self, id: ConnId) -> bool {
        let socket = self.sockets.get(id);
        socket.is_none_or(|socket| matches!(socket.entry, Entry::Open))
    }

    /// Continues a connection whose peer has to prove that it belongs to the job.
    #[cold]
    fn enter(&mut self, id: ConnId) -> Read {
        let Some(socket) = self.sockets.get_mut(id) else {
            return Read::Nothing;
        };
        let (descriptor, entry) = (&socket.descriptor, &mut socket.entry);
        let (peer, tls, scratch) = (socket.peer, &mut socket.tls, &mut self.scratch);
        match self.gate.advance(descriptor, peer, entry, tls, scratch) {
            Step::Wait { room } => {
                self.sockets.set_writing(id, room);
                Read::Nothing
            }
            Step::Gone => Read::Gone,
            Step::Refuse(why) => {
                self.handle(Input::Refused(id, why));
                Read::Nothing
            }
            Step::Open { proven, rest } => {
                if !proven && self.gate.restricts() {
                    self.handle(Input::Restricted(id));
                }
                self.handle(Input::Bytes(id, &rest));
                Read::Some {
                    count: rest.len(),
                    filled: true,
                }
            }
        }
    }

    /// Notes a broken connection.
    /// It counts as lost if its host no longer answered.
    fn note_broken(&mut self, id: ConnId, error: Errno) {
        let peer = self.sockets.get(id).and_then(|socket| socket.peer);
        if matches!(
            error,
            Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH
        ) {
            self.traffic.lost_connections += 1;
            let lost = self.traffic.lost_connections;
            self.notices.lost(self.now.mono, peer, lost);
            self.machine.handle(self.now, Input::Silent(id));
        } else {
            tracing::debug!(?peer, %error, "a store connection failed");
        }
    }

    /// Sets the keep-alive of an agent's connection.
    /// An agent connects again if its connection is closed. The connection is therefore closed soon
    /// if the agent's host does not answer.
    pub(super) fn watch_closely(&mut self, id: ConnId, silence: Option<Duration>) {
        let keep_alive = KeepAlive::of_agent(silence);
        if let Some(socket) = self.sockets.get(id)
            && let Err(error) = keep_alive.set(&socket.descriptor)
        {
            tracing::debug!(peer = ?socket.peer, %error, "cannot enable keep-alive");
        }
    }

    /// Sends replies once; the kernel reports when there is space for the rest.
    #[inline]
    pub(super) fn flush(&mut self, id: ConnId) {
        let Some((sent, wanted, more)) = self.send_once(id) else {
            return;
        };
        match sent {
            Ok(count) => {
                self.traffic.sent_bytes += count as u64;
                // Encrypted bytes are accepted in parts although the socket has space.
                let is_encrypted = || {
                    self.sockets
                        .get(id)
                        .is_some_and(|socket| socket.tls.is_some())
                };
                let is_full = count < wanted && !is_encrypted();
                self.sockets.set_writing(id, is_full);
                if !is_full && (more || count < wanted) {
                    self.unsent.push(id);
                }
                self.machine.handle(self.now, Input::Sent(id, count));
            }
            Err(Errno::AGAIN | Errno::INTR) => self.sockets.set_writing(id, true),
            Err(error) => {
                self.note_broken(id, error);
                self.forget_quietly(id);
            }
        }
    }

    /// Attempts to send once.
    /// Returns the result, the number of bytes tried, and whether there are more.
    #[inline]
    fn send_once(&mut self, id: ConnId) -> Option<(Result<usize, Errno>, usize, bool)> {
        let socket = self.sockets.get_mut(id)?;
        if let Some(unsent) = self.machine.unsent_in_one(id) {
            if unsent.is_empty() {
                return None;
            }
            let wanted = unsent.len().min(COPY_BYTES);
            let sent = match &mut socket.tls {
                None => send(&socket.descriptor, &unsent[..wanted], SendFlags::NOSIGNAL),
                Some(tls) => encrypt(tls, &[IoSlice::new(&unsent[..wanted])]),
            };
            return Some((sent, wanted, wanted < unsent.len()));
        }
        let mut parts = self.machine.unsent(id);
        let mut slices = [IoSlice::new(&[]); SEND_PARTS];
        let (mut count, mut wanted, mut is_cut) = (0, 0, false);
        while count < SEND_PARTS
            && !is_cut
            && let Some(part) = parts.next()
        {
            let length = part.len().min(COPY_BYTES - wanted);
            is_cut = length < part.len();
            slices[count] = IoSlice::new(&part[..length]);
            wanted += length;
            count += 1;
        }
        let mut nothing = SendAncillaryBuffer::default();
        let (slices, socket_flags) = (&slices[..count], SendFlags::NOSIGNAL);
        let sent = match &mut socket.tls {
            None => sendmsg(&socket.descriptor, slices, &mut nothing, socket_flags),
            Some(tls) => encrypt(tls, slices),
        };
        Some((sent, wanted, is_cut || parts.next().is_some()))
    }

    /// Closes a connection for a reason, after a last attempt to send its replies.
    pub(super) fn close(&mut self, id: ConnId, reason: &CloseReason) {
        if *reason == CloseReason::OutOfDescriptors {
            self.tell_short();
        } else if let Some(socket) = self.sockets.get_mut(id) {
            self.notices.closes(self.now.mono, socket.peer, reason);
            if let Some(line) = refusal_of(reason) {
                // The peer may have left.
                let _ = match socket.tls.as_mut() {
                    None => send(&socket.descriptor, &line, SendFlags::NOSIGNAL),
                    Some(tls) => encrypt(tls, &[IoSlice::new(&line)]),
                };
                // With unread input, the system would discard that line.
                let _ = receive(&socket.descriptor, &mut self.scratch);
            }
        }
        let _ = self.send_once(id);
        self.forget_quietly(id);
    }

    /// Removes a connection whose peer has left or that has broken.
    fn forget(&mut self, id: ConnId) {
        self.forget_quietly(id);
        self.apply_outputs();
    }

    /// Does the same as [`Service::forget`], for use while outputs are applied.
    fn forget_quietly(&mut self, id: ConnId) {
        if self.sockets.remove(id).is_some() {
            self.machine.handle(self.now, Input::Closed(id));
            if self.accept_again.is_some() {
                self.set_accepting(true);
            }
        }
    }

    /// Ends all connections so that their last replies still arrive.
    /// Closing a socket with unread input would reset the connection instead.
    pub(super) fn leave(&mut self) {
        for id in self.sockets.ids() {
            let _ = self.send_once(id);
            let Some(socket) = self.sockets.remove(id) else {
                continue;
            };
            if let Some(mut tls) = socket.tls {
                tls.close();
            }
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

/// Returns the line for a peer that is refused because of a proof.
/// Either its proof is missing or wrong, or it requires a proof that the server cannot give.
fn refusal_of(reason: &CloseReason) -> Option<Vec<u8>> {
    match reason {
        CloseReason::Refused(why) => Some(handshake::refusal(why)),
        CloseReason::NotAStoreClient { first, .. } if first.first() == Some(&handshake::OPCODE) => {
            Some(handshake::refusal(
                "this store has no job token; start it with the client's --token-file, or start \
                 the client without --token-file",
            ))
        }
        _ => None,
    }
}

/// Reads into a buffer.
/// Returns the number of bytes, and whether there may be more.
#[inline]
fn receive(socket: impl AsFd, into: &mut [u8]) -> Result<(usize, bool), Errno> {
    let (count, _) = recv(socket, &mut *into, RecvFlags::empty())?;
    Ok((count, count == into.len()))
}

/// Converts the result of a read of encrypted bytes.
/// A record may hold more bytes, and more records may be available, so `true` is returned.
fn decrypted(read: io::Result<usize>) -> Result<(usize, bool), Errno> {
    match read {
        Ok(count) => Ok((count, true)),
        Err(error) => Err(errno(&error)),
    }
}

fn encrypt(tls: &mut Tls, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    tls.write(parts).map_err(|error| errno(&error))
}

fn errno(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::WouldBlock => Errno::AGAIN,
        _ => Errno::from_io_error(error).unwrap_or(Errno::PROTO),
    }
}

/// Reads into the spare capacity of a buffer.
/// Returns the number of bytes, and whether there may be more.
fn land(socket: impl AsFd, space: &mut Vec<u8>) -> Result<(usize, bool), Errno> {
    let length = space.len();
    if space.capacity() - length <= COPY_BYTES {
        let (count, _) = recv(socket, spare_capacity(space), RecvFlags::empty())?;
        return Ok((count, space.len() == space.capacity()));
    }
    space.resize(length + COPY_BYTES, 0);
    let received = recv(socket, &mut space[length..], RecvFlags::empty());
    let count = received.map_or(0, |(count, _)| count);
    space.truncate(length + count);
    received.map(|_| (count, count == COPY_BYTES))
}
