//! Connection on which messages are sent to a peer.

use std::collections::VecDeque;

use crate::matching;
use crate::outbound::Outbound;
use crate::wire::{Envelope, Frame};

/// Maximum number of pieces to send before the turn of the next connection.
const PIECES: usize = 16;

/// Dialled connection to a peer, and the messages that it carries.
#[derive(Debug)]
pub(super) struct Leaving {
    pub(super) outbound: Outbound,
    /// `true` if the peer has sent a leave frame.
    pub(super) left: bool,
    /// Announced messages whose values are to be sent, in order.
    streams: VecDeque<Stream>,
    /// Sends whose bytes were all queued on the connection.
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

    /// Sends an envelope and, for an eager message, the values.
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

    /// Queues the values of an announced message behind those that are being sent.
    pub(super) fn stream(&mut self, operation: matching::Operation, number: u64) {
        self.streams.push_back(Stream {
            operation,
            number,
            sent: 0,
        });
    }

    /// Sends what can be sent now; `longest` is the maximum length of a piece.
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
            // A send that ended before its values were sent has also ended the group.
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

    /// `true` if values can be sent now, without waiting for an event.
    pub(super) fn can_go_on(&self) -> bool {
        !self.streams.is_empty() && !self.outbound.is_behind(0) && self.outbound.ended().is_none()
    }

    /// `true` if data is to be sent through the ring, and the ring has space.
    ///
    /// A spinning caller can repeat this check.
    pub(super) fn has_space(&mut self) -> bool {
        let waits = !self.streams.is_empty() || self.outbound.is_behind(0);
        waits && self.outbound.ended().is_none() && self.outbound.can_go_on()
    }

    /// Returns the completed sends: their bytes were sent to a connected peer.
    pub(super) fn take_sent(&mut self) -> Vec<matching::Operation> {
        if self.outbound.is_behind(0) {
            return Vec::new();
        }
        std::mem::take(&mut self.posted)
    }
}
