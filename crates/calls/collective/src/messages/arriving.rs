//! Connection on which messages of a peer arrive.

use std::io::{self, IoSlice, IoSliceMut};

use crate::inbound::Inbound;
use crate::matching;
use crate::wire::{Envelope, FRAME, Frame, Sent};

/// Maximum bytes of unsent answers; beyond it no frame of the peer is read.
const UNREAD: usize = 64 * 1024;

/// Accepted connection of a peer, and the frame that is being read.
#[derive(Debug)]
pub(super) struct Arriving {
    pub(super) inbound: Inbound,
    head: [u8; FRAME],
    read: usize,
    pub(super) body: Body,
    /// Answers; `answers[answered..]` are still to be sent.
    answers: Vec<u8>,
    answered: usize,
}

/// Next part of the stream.
#[derive(Debug)]
pub(super) enum Body {
    Frame,
    /// The values of an eager message. `read` bytes have arrived.
    Eager {
        envelope: Envelope,
        values: Vec<u8>,
        read: usize,
    },
    /// Values of an announced message, up to this end in the buffer of the receive.
    Piece {
        operation: matching::Operation,
        number: u64,
        offset: usize,
        end: usize,
        payload: usize,
    },
}

#[derive(Debug)]
pub(super) enum Reading {
    Nothing,
    /// Values of this many bytes.
    Values(usize),
    Frame(Sent),
}

impl Arriving {
    pub(super) fn new(inbound: Inbound) -> Self {
        Self {
            inbound,
            head: [0; FRAME],
            read: 0,
            body: Body::Frame,
            answers: Vec::new(),
            answered: 0,
        }
    }

    /// Reads a frame, or some of the values that are due.
    ///
    /// The values of an announced message go into `buffer`.
    pub(super) fn read(&mut self, buffer: Option<&mut [u8]>) -> io::Result<Reading> {
        let target = match &mut self.body {
            Body::Frame => &mut self.head[self.read..],
            Body::Eager { values, read, .. } => &mut values[*read..],
            Body::Piece { offset, end, .. } => {
                buffer.map_or(&mut [][..], |buffer| &mut buffer[*offset..*end])
            }
        };
        let now = match self.inbound.read_some(&mut [IoSliceMut::new(target)]) {
            Ok(0) => return self.read_beside(),
            Ok(now) => now,
            Err(error) => return Err(self.closed(error)),
        };
        match &mut self.body {
            Body::Eager { read, .. } => *read += now,
            Body::Piece { offset, .. } => *offset += now,
            Body::Frame => {
                self.read += now;
                if self.read < FRAME {
                    return Ok(Reading::Values(0));
                }
                self.read = 0;
                return Ok(Reading::Frame(Frame::read(self.head)));
            }
        }
        Ok(Reading::Values(now))
    }

    /// Reads a frame of the peer beside its ring, once the ring is empty.
    fn read_beside(&mut self) -> io::Result<Reading> {
        let said = self.inbound.read_control();
        if !matches!(said, Ok(None)) && self.inbound.has_more() {
            // The data in the ring comes first, because the peer wrote it before.
            return Ok(Reading::Values(0));
        }
        match said {
            Ok(None) => Ok(Reading::Nothing),
            Ok(Some(frame)) => Ok(Reading::Frame(frame)),
            Err(error) => Err(self.closed(error)),
        }
    }

    fn closed(&self, error: io::Error) -> io::Error {
        if self.read == 0 && matches!(self.body, Body::Frame) {
            return error;
        }
        io::Error::new(error.kind(), format!("{error}, inside a message"))
    }

    /// `true` if the peer has read enough answers, so that its frames may be read.
    pub(super) fn is_read(&self) -> bool {
        self.answers.len() - self.answered <= UNREAD
    }

    pub(super) fn has_answers(&self) -> bool {
        self.answered < self.answers.len()
    }

    pub(super) fn answer(&mut self, frame: &Frame) {
        self.answers.extend_from_slice(&frame.encode());
    }

    /// Sends answers, as many as can be sent now.
    ///
    /// If the connection has ended, the next read reports it.
    pub(super) fn send_answers(&mut self) {
        while self.has_answers() {
            let rest = IoSlice::new(&self.answers[self.answered..]);
            match self.inbound.socket.write(&[rest]) {
                Ok(0) => return,
                Ok(written) => self.answered += written,
                Err(_) => break,
            }
        }
        self.answers.clear();
        self.answered = 0;
    }
}
