//! Outgoing frames.
//!
//! The sending thread writes as much of a frame as there is room for. It writes nothing while the
//! driver waits for room, or while few bytes are held back. The driver writes the rest later.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::{Buf, Bytes};
use rdzv_rpc_proto::frame::{self, Header, PartHead, PartLocation};

use crate::transport::WriteHalf;

/// Maximum number of pieces in one write.
const MOST_SLICES: usize = 64;

/// Size at which held frames are sent without waiting for more.
const ENOUGH: usize = 64 * 1024;

/// One part of a frame that is about to be sent.
pub(crate) struct Part {
    pub(crate) location: PartLocation,
    pub(crate) bytes: Bytes,
}

/// The writing end and the data that has not been written yet.
pub(crate) struct Writer {
    half: Box<dyn WriteHalf>,
    /// Pieces in order; parts are shared with their owner, not copied.
    queue: VecDeque<Bytes>,
    queued: usize,
    /// Heads and bodies of frames that follow `queue`.
    held: Vec<u8>,
    holding: bool,
    /// `true` if the driver waits for room.
    ///
    /// As long as the driver waits, no thread writes. A writing thread would count as awake, and
    /// the driver would not be notified of room again.
    asleep: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Left {
    /// Everything has been written.
    Nothing,
    /// The rest must wait for room, or until no frames are held back.
    Some,
}

impl Writer {
    pub(crate) fn new(half: Box<dyn WriteHalf>) -> Self {
        Self {
            half,
            queue: VecDeque::new(),
            queued: 0,
            held: Vec::new(),
            holding: false,
            asleep: false,
        }
    }

    /// Returns the writing half, to wait for room.
    pub(crate) fn half(&mut self) -> &mut dyn WriteHalf {
        self.half.as_mut()
    }

    /// Returns the number of bytes that were not written yet.
    pub(crate) fn unsent(&self) -> usize {
        self.queued + self.held.len()
    }

    /// `true` if the driver may sleep until there is room.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        self.asleep = self.half.prepare_to_sleep();
        self.asleep
    }

    pub(crate) fn awake(&mut self) {
        if self.asleep {
            self.half.awake();
            self.asleep = false;
        }
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Starts to hold frames back, so that several go out together.
    pub(crate) fn hold(&mut self) {
        self.holding = true;
    }

    /// `true` if frames are held back.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding
    }

    /// Stops holding frames back and sends them.
    pub(crate) fn let_go(&mut self) -> io::Result<Left> {
        self.holding = false;
        self.flush()
    }

    /// Sends a frame, and queues the part that does not fit.
    pub(crate) fn send(
        &mut self,
        header: &Header,
        body: &[u8],
        parts: Vec<Part>,
    ) -> io::Result<Left> {
        let heads: Vec<PartHead> = parts
            .iter()
            .map(|part| PartHead {
                location: part.location,
                length: part.bytes.len() as u64,
            })
            .collect();
        frame::encode(header, body, &heads, &mut self.held);
        let mut inline = parts
            .into_iter()
            .filter(|part| matches!(part.location, PartLocation::Inline) && !part.bytes.is_empty())
            .peekable();
        if inline.peek().is_some() {
            self.settle_held();
            for part in inline {
                self.queued += part.bytes.len();
                self.queue.push_back(part.bytes);
            }
        }
        if self.holding && self.queued + self.held.len() < ENOUGH {
            return Ok(Left::Some);
        }
        self.flush()
    }

    /// Writes as much as there is room for.
    pub(crate) fn flush(&mut self) -> io::Result<Left> {
        if self.asleep {
            return Ok(Left::Some);
        }
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); MOST_SLICES];
            let mut filled = 0;
            for piece in self.queue.iter().take(MOST_SLICES) {
                slices[filled] = IoSlice::new(piece);
                filled += 1;
            }
            match self.half.write(&slices[..filled]) {
                Ok(written) => self.forget(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Left::Some),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut from = 0;
        while from < self.held.len() {
            match self.half.write(&[IoSlice::new(&self.held[from..])]) {
                Ok(written) => from += written,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.held.drain(..from);
                    self.settle_held();
                    return Ok(Left::Some);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.held.clear();
        Ok(Left::Nothing)
    }

    /// Moves the held frames to the queue.
    fn settle_held(&mut self) {
        if !self.held.is_empty() {
            self.queued += self.held.len();
            self.queue.push_back(std::mem::take(&mut self.held).into());
        }
    }

    fn forget(&mut self, mut written: usize) {
        self.queued -= written;
        while let Some(first) = self.queue.front_mut() {
            if written < first.len() {
                first.advance(written);
                return;
            }
            written -= first.len();
            self.queue.pop_front();
        }
    }
}
