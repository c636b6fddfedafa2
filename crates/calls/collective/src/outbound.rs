//! Connection that was dialled to a peer and carries data to it.
//!
//! No operation on the connection blocks.

use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;

use rdzv_shm::pair::OfferOneWay;
use rdzv_shm::{Producer, SharedBuffer};

use crate::acceptor::Member;
use crate::call::Call;
use crate::error::{CollectiveError, Result};
use crate::shared;
use crate::socket::{Control, Endpoint, Socket};
use crate::wire::{Frame, Hello, Sent, VERSION};

/// Dialled connection to a peer.
///
/// It carries data to the peer, and the answers and aborts of the peer in the other direction.
#[derive(Debug)]
pub(crate) struct Outbound {
    pub(crate) socket: Socket,
    transport: Transport,
    /// Bytes; `queue[sent..]` are still to be sent.
    queue: Vec<u8>,
    sent: usize,
    reply: Control,
    accepted: bool,
    /// `true` once data was posted.
    ///
    /// Before that, the connection carries only the hello, answers and aborts.
    carries_data: bool,
    /// Reason why the connection ended; `None` before its end.
    ended: Option<String>,
}

#[derive(Debug)]
enum Transport {
    Socket,
    /// The peer has not yet accepted or declined the ring.
    ///
    /// No data is sent until then.
    Offered(Box<OfferOneWay>),
    Ring(Box<Producer>),
}

impl Outbound {
    /// Starts to connect for a call, with the hello as the first bytes.
    ///
    /// With a shared buffer, this offers the buffer and a ring to a rank of this host.
    pub(crate) fn dial(
        member: &Member,
        peer: u32,
        endpoint: &Endpoint,
        buffer: Option<&SharedBuffer>,
        call: &Call,
    ) -> Result<Self> {
        let (socket, refused) = Socket::dial(endpoint).map_err(|error| {
            let address = endpoint.address;
            let what = format!("create a socket for rank {peer} at {address} in {call}");
            CollectiveError::system(what, error)
        })?;
        let mut outbound = Self {
            socket,
            transport: Transport::Socket,
            queue: Vec::new(),
            sent: 0,
            reply: Control::default(),
            accepted: false,
            carries_data: false,
            ended: refused.map(|error| error.to_string()),
        };
        let hello = Hello {
            version: VERSION,
            from: member.rank,
            to: peer,
            world_size: member.world_size,
            group: member.group,
            offers_memory: false,
        };
        outbound.send_hello(hello, buffer);
        Ok(outbound)
    }

    fn send_hello(&mut self, hello: Hello, buffer: Option<&SharedBuffer>) {
        let socket = &self.socket;
        if let Some(buffer) = buffer.filter(|_| socket.is_local()) {
            match shared::offer(socket) {
                Ok(offer) => {
                    let hello = Hello {
                        offers_memory: true,
                        ..hello
                    };
                    self.ended = shared::pass(socket, &hello.encode(), &offer, buffer).err();
                    self.transport = Transport::Offered(Box::new(offer));
                    return;
                }
                Err(reason) => tracing::debug!(rank = hello.to, reason, "memory is not shared"),
            }
        }
        socket.widen();
        self.queue.extend_from_slice(&hello.encode());
    }

    /// `true` if more than `most` bytes of data are still to be sent.
    ///
    /// With `most` 0 and posted data, this is also `true` until the peer has accepted the hello,
    /// because closing a connection with an unread answer would discard data in flight.
    pub(crate) fn is_behind(&self, most: usize) -> bool {
        self.carries_data && (self.queued() > most || (most == 0 && !self.accepted))
    }

    /// `true` if the peer has accepted the hello, so it expects data.
    pub(crate) fn is_accepted(&self) -> bool {
        self.accepted
    }

    pub(crate) fn shares_buffer(&self) -> bool {
        matches!(self.transport, Transport::Ring(_))
    }

    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// Returns the number of bytes that are still to be sent.
    fn queued(&self) -> usize {
        self.queue.len() - self.sent
    }

    pub(crate) fn waits_for_socket(&self) -> bool {
        matches!(self.transport, Transport::Socket) && self.queued() > 0
    }

    /// Returns the doorbell that rings when the ring has space for queued data.
    pub(crate) fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        match &self.transport {
            Transport::Ring(ring) if self.queued() > 0 && self.ended.is_none() => {
                Some(ring.doorbell())
            }
            _ => None,
        }
    }

    /// Prepares the ring for a sleep of this rank.
    ///
    /// Returns `false` if at least half of the ring is free, or the ring has failed.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        let waits = self.doorbell().is_some();
        match &mut self.transport {
            Transport::Ring(ring) if waits => ring.prepare_to_sleep(),
            _ => true,
        }
    }

    /// Ends the sleep, and clears the doorbell.
    pub(crate) fn awake(&mut self) {
        if let Transport::Ring(ring) = &mut self.transport {
            ring.awake();
        }
    }

    /// `true` if at least a quarter of the ring is free, or the ring has failed.
    ///
    /// A spinning caller can repeat this check.
    pub(crate) fn can_go_on(&mut self) -> bool {
        match &mut self.transport {
            Transport::Ring(ring) => {
                !matches!(ring.space(), Ok(space) if space < shared::CAPACITY / 4)
            }
            _ => false,
        }
    }

    /// Sends a data frame, or queues the bytes that cannot be sent now.
    pub(crate) fn post(&mut self, frame: &Frame, payload: &[&[u8]]) {
        self.carries_data = true;
        let header = frame.encode();
        let mut taken = 0;
        if self.queued() == 0 {
            self.queue.clear();
            self.sent = 0;
            // The bytes come directly from the caller's memory. Most messages are sent completely
            // here.
            let mut slices = Vec::with_capacity(1 + payload.len());
            slices.push(IoSlice::new(&header));
            slices.extend(payload.iter().map(|slice| IoSlice::new(slice)));
            if self.ended.is_none() {
                // No error is lost: the next call gets it again.
                let carried = self.transport.carry(&self.socket, &slices);
                taken = carried.unwrap_or_default();
            }
        }
        for slice in std::iter::once(&header[..]).chain(payload.iter().copied()) {
            let gone = taken.min(slice.len());
            taken -= gone;
            self.queue.extend_from_slice(&slice[gone..]);
        }
    }

    /// Sends the bytes that can be sent now.
    pub(crate) fn send(&mut self) {
        while self.ended.is_none() && self.queue.len() > self.sent {
            let rest = IoSlice::new(&self.queue[self.sent..]);
            match self.transport.carry(&self.socket, &[rest]) {
                // This is also the case before the connection exists.
                Ok(0) => return,
                Ok(sent) => self.sent += sent,
                Err(error) => self.ended = Some(error.to_string()),
            }
        }
    }

    /// Returns the next frame of the peer, except the accept frame.
    pub(crate) fn read_reply(&mut self) -> Option<Sent> {
        loop {
            match self.reply.read(&self.socket) {
                Ok(sent) => {
                    let frame = sent?;
                    self.reply = Control::default();
                    let Ok(Frame::Accept { memory }) = frame else {
                        return Some(frame);
                    };
                    self.accept(memory);
                }
                Err(error) => {
                    self.ended.get_or_insert(error.to_string());
                    return None;
                }
            }
        }
    }

    /// Records that the peer expects data, in the offered memory or on the socket.
    fn accept(&mut self, memory: bool) {
        self.accepted = true;
        self.transport = match std::mem::replace(&mut self.transport, Transport::Socket) {
            Transport::Offered(offer) if memory => Transport::Ring(Box::new(offer.taken())),
            Transport::Offered(_) => {
                tracing::debug!("the peer shares no memory");
                self.socket.widen();
                Transport::Socket
            }
            way => way,
        };
        self.send();
    }

    /// Sends an abort if possible, and ends the sending.
    pub(crate) fn abort(&mut self, frame: &Frame) {
        if matches!(self.transport, Transport::Socket) {
            self.queue.extend_from_slice(&frame.encode());
            self.send();
        } else {
            self.send();
            // The socket carries nothing else, so it has room.
            self.socket.send_control(frame);
        }
        self.socket.finish();
    }
}

impl Transport {
    /// Writes once; returns the number of bytes, or 0 if none can be written now.
    fn carry(&mut self, socket: &Socket, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Socket => socket.write(slices),
            Self::Offered(_) => Ok(0),
            Self::Ring(ring) => Ok(ring.write(slices)?),
        }
    }
}
