//! The connection to a peer that messages are sent to.

use std::collections::VecDeque;

use crate::matching;
use crate::outbound::Outbound;
use crate::wire::{Envelope, Frame};

/// Number of pieces that go before others have their turn.
const PIECES: usize = 16;

/// The dialled connection of a peer, and the messages that go through it.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) outbound: Outbound,
    /// The peer said that it leaves.
    pub(super) left: bool,
    /// Announced messages whose values are to go, one after another.
    streams: VecDeque<Stream>,
    /// Sends all of whose bytes were handed to the connection, which may not have sent them yet.
    posted: Vec<matching::Operation>,
}

#[derive(Debug)]
struct Stream {
    operation: matching::Operation,
    number: u64,
    sent: usize,
}

impl Leaving {
    pub(super) fn new(outbound: Outbound) -> Self {
        Self {
            outbound,
            left: false,
            streams: VecDeque::new(),
            posted: Vec::new(),
        }
    }

    /// Sends an envelope; with the values, if they go with it.
    pub(super) fn post(
        &mut self,
        operation: matching::Operation,
        envelope: Envelope,
        values: Option<&[u8]>,
    ) {
        let eager = values.is_some();
        let frame = Frame::Message { envelope, eager };
        self.outbound.post(&frame, &[values.unwrap_or_default()]);
        if eager {
            self.posted.push(operation);
        }
    }

    /// Has the values of an announced message follow those that are on their way.
    pub(super) fn stream(&mut self, operation: matching::Operation, number: u64) {
        self.streams.push_back(Stream {
            operation,
            number,
            sent: 0,
        });
    }

    /// Sends what can be sent now, values in pieces of at most so many bytes.
    pub(super) fn send<'a>(
        &mut self,
        longest: usize,
        values_of: impl Fn(matching::Operation) -> Option<&'a [u8]>,
    ) {
        self.outbound.send();
        for _ in 0..PIECES {
            if !self.can_go_on() {
                return;
            }
            let Some(stream) = self.streams.front_mut() else {
                return;
            };
            // An operation that has ended has ended the group.
            let values = values_of(stream.operation).unwrap_or_default();
            let piece = &values[stream.sent..values.len().min(stream.sent + longest)];
            let frame = Frame::Piece {
                number: stream.number,
                payload: u32::try_from(piece.len()).expect("a piece is far shorter than 4 GiB"),
            };
            self.outbound.post(&frame, &[piece]);
            stream.sent += piece.len();
            if stream.sent == values.len() {
                self.posted.push(stream.operation);
                self.streams.pop_front();
            }
        }
    }

    /// `true` if values can be sent although nothing happens.
    pub(super) fn can_go_on(&self) -> bool {
        !self.streams.is_empty() && !self.outbound.is_behind(0) && self.outbound.ended().is_none()
    }

    /// `true` if something is to go through the ring, and there is space for it; for looking again
    /// and again.
    pub(super) fn has_space(&mut self) -> bool {
        let waits = !self.streams.is_empty() || self.outbound.is_behind(0);
        waits && self.outbound.ended().is_none() && self.outbound.can_go_on()
    }

    /// The sends that have ended: their bytes are on their way to a peer that is there.
    pub(super) fn take_sent(&mut self) -> Vec<matching::Operation> {
        if self.outbound.is_behind(0) {
            return Vec::new();
        }
        std::mem::take(&mut self.posted)
    }
}
