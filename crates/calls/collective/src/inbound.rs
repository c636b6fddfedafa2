//! Connection that was accepted from a peer and carries its data.
//!
//! No operation on the connection blocks.

use std::io::{self, ErrorKind, IoSliceMut};
use std::os::fd::{BorrowedFd, OwnedFd};

use rdzv_shm::pair::MESSAGE;
use rdzv_shm::{Consumer, PeerBuffer, pass};

use crate::shared::{self, Shared};
use crate::socket::{Control, Socket};
use crate::wire::{FRAME, Frame, HELLO, Hello, Sent};

/// Accepted connection that has not identified itself.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) socket: Socket,
    /// Address or name of the peer's socket.
    pub(crate) from: String,
    /// Received bytes: the hello, and the offer of memory if one follows.
    said: [u8; HELLO + MESSAGE],
    read: usize,
    descriptors: Vec<OwnedFd>,
}

impl Handshake {
    pub(crate) fn new((socket, from): (Socket, String)) -> Self {
        Self {
            socket,
            from,
            said: [0; HELLO + MESSAGE],
            read: 0,
            descriptors: Vec::new(),
        }
    }

    /// Returns the hello once all its bytes have arrived.
    ///
    /// `Some(None)` if the bytes are not a hello, and `None` if bytes are missing. An error means
    /// that the connection has ended, or that the peer passed too many descriptors.
    pub(crate) fn read_hello(&mut self) -> io::Result<Option<Option<Hello>>> {
        loop {
            let wanted = match self.hello() {
                Some(hello) if hello.offers_memory => HELLO + MESSAGE,
                _ => HELLO,
            };
            if self.read == wanted {
                return Ok(Some(self.hello()));
            }
            match pass::receive(&self.socket, &mut self.said[self.read..wanted]) {
                Ok((0, _)) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok((read, descriptors)) => {
                    self.read += read;
                    self.descriptors.extend(descriptors);
                    if self.descriptors.len() > pass::MOST {
                        return Err(ErrorKind::InvalidData.into());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    fn hello(&self) -> Option<Hello> {
        let hello = self.said[..HELLO].try_into().ok()?;
        (self.read >= HELLO).then(|| Hello::decode(hello))?
    }

    /// Accepts the connection as the peer's data connection.
    ///
    /// If `share` is `true`, this rank accepts the offered memory.
    pub(crate) fn accept(self, share: bool) -> Inbound {
        let offer = self.hello().filter(|hello| share && hello.offers_memory);
        let shared = offer.and_then(|hello| {
            let mut message = [0; MESSAGE];
            message.copy_from_slice(&self.said[HELLO..]);
            let taken = shared::accept(&self.socket, &message, self.descriptors);
            let refused =
                |reason: &String| tracing::debug!(rank = hello.from, reason, "shares no memory");
            taken.inspect_err(refused).ok()
        });
        let inbound = Inbound {
            socket: self.socket,
            shared,
            control: Control::default(),
        };
        inbound.socket.send_control(&Frame::Accept {
            memory: inbound.shared.is_some(),
        });
        inbound
    }

    /// Sends a frame, and closes the connection.
    pub(crate) fn refuse(self, frame: &Frame) {
        self.socket.send_control(frame);
    }
}

/// Accepted connection of a peer.
///
/// It carries the data of the peer, and this rank's answers and aborts in the other direction.
#[derive(Debug)]
pub(crate) struct Inbound {
    pub(crate) socket: Socket,
    /// Shared memory that carries the data instead of the socket.
    ///
    /// With shared memory, the peer sends at most an abort on the socket.
    shared: Option<Shared>,
    control: Control,
}

/// Data frame that is being received.
#[derive(Debug)]
pub(crate) struct Incoming<'a> {
    frame: [u8; FRAME],
    payload: &'a mut [u8],
    read: usize,
}

impl<'a> Incoming<'a> {
    pub(crate) fn new(payload: &'a mut [u8]) -> Self {
        Self {
            frame: [0; FRAME],
            payload,
            read: 0,
        }
    }

    /// Returns the frame once its header has arrived, before the payload.
    pub(crate) fn frame(&self) -> Option<Sent> {
        (self.read >= FRAME).then(|| Frame::read(self.frame))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.read == FRAME + self.payload.len()
    }

    /// `true` if the awaited payload has this many bytes.
    pub(crate) fn expects(&self, payload: u32) -> bool {
        self.payload.len() == payload as usize
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.read > 0
    }

    /// Returns the memory for the rest of the frame, and for the payload.
    fn room(&mut self) -> [IoSliceMut<'_>; 2] {
        let in_frame = self.read.min(FRAME);
        [
            IoSliceMut::new(&mut self.frame[in_frame..]),
            IoSliceMut::new(&mut self.payload[self.read - in_frame..]),
        ]
    }
}

impl Inbound {
    /// Returns the shared buffer of the peer, if it shares memory with this rank.
    pub(crate) fn buffer(&self) -> Option<&PeerBuffer> {
        self.shared.as_ref().map(|shared| &shared.buffer)
    }

    fn ring(&mut self) -> Option<&mut Consumer> {
        self.shared.as_mut().map(|shared| &mut shared.ring)
    }

    /// Returns the doorbell that rings when data arrives; `None` without a ring.
    pub(crate) fn doorbell(&self) -> Option<BorrowedFd<'_>> {
        self.shared.as_ref().map(|shared| shared.ring.doorbell())
    }

    /// Prepares the ring for a sleep of this rank.
    ///
    /// Returns `false` if the ring already has data, or has failed.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        let ring = self.ring();
        ring.is_none_or(Consumer::prepare_to_sleep)
    }

    /// Ends the sleep; the next sleep clears the doorbell.
    pub(crate) fn awake(&mut self) {
        if let Some(ring) = self.ring() {
            ring.awake();
        }
    }

    /// `true` if the ring has data. A spinning caller can repeat this check.
    pub(crate) fn has_more(&mut self) -> bool {
        // An error counts as data, because the next read returns it.
        let available = |ring: &mut Consumer| !matches!(ring.available(), Ok(0));
        self.ring().is_some_and(available)
    }

    /// Reads available bytes, up to the end of the frame.
    ///
    /// Returns `Ok(true)` if there were any bytes.
    pub(crate) fn read(&mut self, incoming: &mut Incoming<'_>) -> io::Result<bool> {
        let read = self.read_some(&mut incoming.room())?;
        incoming.read += read;
        Ok(read > 0)
    }

    /// Reads some available bytes; 0 if there are none.
    pub(crate) fn read_some(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(ring) = self.ring() else {
            return self.socket.read(into);
        };
        let mut read = 0;
        for room in into {
            let now = ring.read(room)?;
            read += now;
            if now < room.len() {
                break;
            }
        }
        Ok(read)
    }

    /// Reads a control frame beside the ring; returns the same frame each time.
    ///
    /// Returns an error if the peer has ended. The peer wrote the data in the ring before this
    /// frame.
    pub(crate) fn read_control(&mut self) -> io::Result<Option<Sent>> {
        if self.shared.is_none() {
            return Ok(None);
        }
        self.control.read(&self.socket)
    }
}
