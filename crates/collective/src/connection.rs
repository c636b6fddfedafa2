//! The two kinds of connection of a pair: the dialled one, which carries own data to the peer, and
//! the accepted one, which carries the peer's data here. Neither ever blocks.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use crate::socket::{Place, Socket};
use crate::wire::{FRAME, Frame, HELLO, Hello};

/// The dialled connection to a peer. Sends data; hears whether it is welcome, and of aborts.
#[derive(Debug)]
pub(crate) struct Outbound {
    /// Nothing if it was refused at once.
    socket: Option<Socket>,
    /// What is to be sent: `queue[sent..]`.
    queue: Vec<u8>,
    sent: usize,
    reply: [u8; FRAME],
    replied: usize,
    welcomed: bool,
    /// False while it only serves to see whether the peer is there.
    carries_data: bool,
    /// Why it ended, once it has.
    ended: Option<String>,
}

impl Outbound {
    /// Begins to connect; the hello is the first thing in the queue.
    pub(crate) fn dial(place: &Place, hello: &Hello) -> io::Result<Self> {
        let (socket, ended) = match Socket::dial(place)? {
            Ok(socket) => (Some(socket), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self {
            socket,
            queue: hello.encode().to_vec(),
            sent: 0,
            reply: [0; FRAME],
            replied: 0,
            welcomed: false,
            carries_data: false,
            ended,
        })
    }

    pub(crate) fn socket(&self) -> Option<&Socket> {
        self.socket.as_ref()
    }

    /// Whether more than `most` bytes of data are still to be sent. With 0, also whether the peer has
    /// yet to say that it was right to send them: closing a connection with an unread answer would
    /// take data back that are still on their way.
    pub(crate) fn is_behind(&self, most: usize) -> bool {
        self.carries_data && (self.queued() > most || (most == 0 && !self.welcomed))
    }

    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.as_deref()
    }

    /// How many bytes are still to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len() - self.sent
    }

    /// Sends a data frame, or queues what the socket does not take now.
    pub(crate) fn post(&mut self, frame: &Frame, payload: &[&[u8]]) {
        self.carries_data = true;
        let header = frame.encode();
        let mut taken = 0;
        if self.queued() == 0 {
            self.queue.clear();
            self.sent = 0;
            // Straight from the caller's memory: most messages are gone with this.
            let mut slices = Vec::with_capacity(1 + payload.len());
            slices.push(IoSlice::new(&header));
            slices.extend(payload.iter().map(|slice| IoSlice::new(slice)));
            taken = self.write(&slices);
        }
        for slice in std::iter::once(&header[..]).chain(payload.iter().copied()) {
            let gone = taken.min(slice.len());
            taken -= gone;
            self.queue.extend_from_slice(&slice[gone..]);
        }
    }

    /// Writes once; how many bytes went. No error is lost: the next call meets it again.
    fn write(&mut self, slices: &[IoSlice<'_>]) -> usize {
        match &self.socket {
            Some(socket) if self.ended.is_none() => socket.write(slices).unwrap_or_default(),
            _ => 0,
        }
    }

    /// Sends as much as the socket takes now.
    pub(crate) fn send(&mut self) {
        let Some(socket) = &self.socket else { return };
        while self.ended.is_none() && self.queue.len() > self.sent {
            match socket.write(&[IoSlice::new(&self.queue[self.sent..])]) {
                Ok(sent) => self.sent += sent,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Before the connection is made the answer is EAGAIN as well.
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => self.ended = Some(error.to_string()),
            }
        }
    }

    /// Hears what the peer says on this connection; `Err` holds bytes that are no frame.
    pub(crate) fn hear(&mut self) -> Result<Option<Frame>, [u8; FRAME]> {
        let Some(socket) = &self.socket else {
            return Ok(None);
        };
        loop {
            match socket.read(&mut [IoSliceMut::new(&mut self.reply[self.replied..])]) {
                Ok(0) => self.ended.get_or_insert("connection closed".to_owned()),
                Ok(read) => {
                    self.replied += read;
                    if self.replied < FRAME {
                        continue;
                    }
                    self.replied = 0;
                    match Frame::decode(&self.reply) {
                        Some(Frame::Welcome) => self.welcomed = true,
                        Some(frame) => return Ok(Some(frame)),
                        None => return Err(self.reply),
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => self.ended.get_or_insert(error.to_string()),
            };
            return Ok(None);
        }
    }

    /// Says that the group is broken, if that can be said here, and that nothing more will come.
    pub(crate) fn abort(&mut self, frame: &Frame) {
        self.queue.extend_from_slice(&frame.encode());
        self.send();
        if let Some(socket) = &self.socket {
            socket.finish();
        }
    }
}

/// A connection that was accepted and has not said yet who it is.
#[derive(Debug)]
pub(crate) struct Arriving {
    socket: Socket,
    from: String,
    hello: [u8; HELLO],
    read: usize,
}

impl Arriving {
    pub(crate) fn new((socket, from): (Socket, String)) -> Self {
        Self {
            socket,
            from,
            hello: [0; HELLO],
            read: 0,
        }
    }

    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Where it comes from.
    pub(crate) fn from(&self) -> &str {
        &self.from
    }

    /// The hello once it is complete (`None` in it if it is not one); `Err` if it will not be.
    pub(crate) fn hear(&mut self) -> io::Result<Option<Option<Hello>>> {
        while self.read < HELLO {
            match self
                .socket
                .read(&mut [IoSliceMut::new(&mut self.hello[self.read..])])
            {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(read) => self.read += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Some(Hello::decode(&self.hello)))
    }

    /// Answers; the connection is the peer's data connection if the answer is a welcome.
    pub(crate) fn answer(self, frame: &Frame) -> Inbound {
        let mut inbound = Inbound {
            socket: self.socket,
        };
        inbound.say(frame);
        inbound
    }
}

/// The accepted connection of a peer. Brings its data; takes our welcome and aborts.
#[derive(Debug)]
pub(crate) struct Inbound {
    socket: Socket,
}

/// A data frame that is being received.
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

    /// The frame once it is there, before the payload is; `Err` holds bytes that are none.
    pub(crate) fn frame(&self) -> Option<Result<Frame, [u8; FRAME]>> {
        (self.read >= FRAME).then(|| Frame::decode(&self.frame).ok_or(self.frame))
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.read == FRAME + self.payload.len()
    }

    /// Whether a payload of so many bytes is the one that is waited for.
    pub(crate) fn expects(&self, payload: u32) -> bool {
        self.payload.len() == payload as usize
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.read > 0
    }

    fn room(&mut self) -> [IoSliceMut<'_>; 2] {
        let in_frame = self.read.min(FRAME);
        [
            IoSliceMut::new(&mut self.frame[in_frame..]),
            IoSliceMut::new(&mut self.payload[self.read - in_frame..]),
        ]
    }
}

impl Inbound {
    pub(crate) fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Reads what is there, up to the end of the frame. `Ok(true)` if something was.
    pub(crate) fn read(&mut self, incoming: &mut Incoming<'_>) -> io::Result<bool> {
        loop {
            match self.socket.read(&mut incoming.room()) {
                Ok(0) => {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "connection closed",
                    ));
                }
                Ok(read) => {
                    incoming.read += read;
                    return Ok(true);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends a control frame. A peer gets two of them at most, which any socket has room for; if it
    /// is gone there is nobody to tell.
    pub(crate) fn say(&mut self, frame: &Frame) {
        let _ = self.socket.write(&[IoSlice::new(&frame.encode())]);
    }
}
