//! The state of one connection.
//!
//! The state includes the validation, the unfinished request and the unsent replies.

use std::collections::VecDeque;

use super::lists::Unfinished;
use super::shares::Account;
use crate::keyspace::StoredValue;
use crate::meter::Shared;
use crate::wire::assemble::Assembler;
use crate::wire::fields::Body;
use crate::wire::request::{Opcode, VALIDATE_MAGIC};
use crate::wire::{LARGE_BODY, reply};

/// Length of `VALIDATE`, the first request of every connection.
pub const PREAMBLE_LENGTH: usize = 5;

const PREAMBLE: [u8; PREAMBLE_LENGTH] = {
    let [a, b, c, d] = VALIDATE_MAGIC.to_le_bytes();
    [Opcode::Validate as u8, a, b, c, d]
};

#[derive(Debug)]
pub(super) struct Connection {
    /// Distinguishes this connection from an earlier one with the same id.
    pub(super) serial: u64,
    pub(super) stage: Stage,
    /// `true` if the connection has made a request that is not a ping.
    pub(super) used: bool,
    /// `true` if the peer may not use the keys and requests of agents.
    pub(super) restricted: bool,
    /// The request that has not been received completely.
    pub(super) assembler: Assembler,
    /// The request that is executed in steps.
    pub(super) unfinished: Option<Unfinished>,
    /// Input received while the connection was paused, or beyond one turn.
    pub(super) held: Vec<u8>,
    /// `true` if the server does not read from the connection.
    ///
    /// The connection has too many unsent replies, or work left for its next turn.
    pub(super) paused: bool,
    /// `true` if the connection is queued for its next turn.
    pub(super) queued: bool,
    pub(super) outgoing: Outgoing,
    /// `true` if the outputs already contain a `Flush` of the connection.
    pub(super) flushing: bool,
    /// Memory and keys of the connection, and the standing of its peer.
    pub(super) account: Account,
    /// Memory of the connection's buffers that the account includes.
    pub(super) counted: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// The server has received this many bytes of `VALIDATE`, all of them correct.
    Validating(usize),
    /// The server executes requests.
    Serving,
    /// The connection is being closed; further input is ignored.
    Closing,
}

impl Connection {
    pub(super) fn new(serial: u64, account: Account) -> Self {
        Self {
            serial,
            stage: Stage::Validating(0),
            used: false,
            restricted: false,
            assembler: Assembler::default(),
            unfinished: None,
            held: Vec::new(),
            paused: false,
            queued: false,
            outgoing: Outgoing::default(),
            flushing: false,
            account,
            counted: 0,
        }
    }

    /// Returns the memory held for this connection, without complete large values.
    #[inline]
    pub(super) fn memory(&self) -> usize {
        let unfinished = self.unfinished.as_ref().map_or(0, Unfinished::memory);
        self.assembler.buffered() + self.held.capacity() + unfinished + self.outgoing.memory()
    }

    /// Updates the account; `true` if it has grown beyond a usual connection's.
    #[inline]
    pub(super) fn account(&mut self) -> bool {
        let memory = self.memory();
        let has_grown = memory > self.counted && memory > 2 * KEPT_CAPACITY;
        self.account.meter.resize(self.counted, memory);
        self.counted = memory;
        has_grown
    }
}

/// Compares input with the remaining bytes of `VALIDATE`.
///
/// Returns the number of bytes used and the new stage, or the first bytes if they are wrong.
pub(super) fn validate(matched: usize, input: &[u8]) -> Result<(usize, Stage), Vec<u8>> {
    let expected = &PREAMBLE[matched..];
    let used = input.len().min(expected.len());
    if input[..used] != expected[..used] {
        return Err([&PREAMBLE[..matched], &input[..used]].concat());
    }
    Ok(match matched + used {
        PREAMBLE_LENGTH => (used, Stage::Serving),
        matched => (used, Stage::Validating(matched)),
    })
}

/// Capacity above which a buffer is released once it is empty.
const KEPT_CAPACITY: usize = 4 << 10;

/// Replies that were not sent yet.
///
/// Small parts are copied into one buffer. Large values are referenced, each with its position in
/// that buffer:
///
/// ```text
///   small   aaaaaaaaaabbbbbbbbcc
///                     ^ position 10        stream: aaaaaaaaaa LARGE bbbbbbbbcc
///   large   (10, LARGE)
/// ```
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    small: Vec<u8>,
    /// Bytes of `small` that have been sent.
    small_sent: usize,
    /// Large values, each with the position in `small` before which it is sent.
    large: VecDeque<(usize, Shared)>,
    /// Bytes of the first large value that have been sent.
    large_sent: usize,
    large_unsent: usize,
}

impl Outgoing {
    #[inline]
    pub(super) fn small(&mut self) -> &mut Vec<u8> {
        &mut self.small
    }

    /// Adds a value with its length in front.
    pub(super) fn push_value(&mut self, value: Body<'_>) {
        match value {
            Body::Inline(bytes) => reply::bytes(&mut self.small, bytes),
            Body::Whole(bytes) => {
                reply::length(&mut self.small, bytes.len());
                self.large_unsent += bytes.len();
                self.large.push_back((self.small.len(), bytes));
            }
        }
    }

    /// Adds a value that has no other holder, with its length in front.
    pub(super) fn push_popped(&mut self, value: StoredValue) {
        match value {
            StoredValue::Plain(value) => self.push_value(Body::Inline(&value)),
            StoredValue::Shared(value) => self.push_value(Body::Whole(value)),
        }
    }

    pub(super) fn push_shared(&mut self, bytes: Shared) {
        if bytes.len() < LARGE_BODY {
            self.small.extend_from_slice(&bytes);
        } else {
            self.large_unsent += bytes.len();
            self.large.push_back((self.small.len(), bytes));
        }
    }

    /// Returns the memory of the unsent replies without large values.
    ///
    /// The meters of their owners count large values.
    pub(super) fn copied(&self) -> usize {
        let indexes = self.large.len() * size_of::<(usize, Shared)>();
        self.small.len() - self.small_sent + indexes
    }

    /// Returns the number of bytes not sent yet.
    #[inline]
    pub(super) fn unsent(&self) -> usize {
        self.small.len() - self.small_sent + self.large_unsent
    }

    /// Returns the memory held; the meter counts large values.
    #[inline]
    pub(super) fn memory(&self) -> usize {
        self.small.capacity() + self.large.capacity() * size_of::<(usize, Shared)>()
    }

    /// Returns the unsent bytes, if no large value is among them.
    #[inline]
    pub(super) fn in_one(&self) -> Option<&[u8]> {
        self.large
            .is_empty()
            .then(|| &self.small[self.small_sent..])
    }

    /// Returns the unsent bytes, in order.
    pub(super) fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut small_from = self.small_sent;
        let mut large = self.large.iter();
        let mut next = large.next();
        let mut large_from = self.large_sent;
        std::iter::from_fn(move || match next {
            Some((position, bytes)) if *position <= small_from => {
                let slice = &bytes[large_from..];
                large_from = 0;
                next = large.next();
                Some(slice)
            }
            Some((position, _)) => {
                let slice = &self.small[small_from..*position];
                small_from = *position;
                Some(slice)
            }
            None if small_from < self.small.len() => {
                let slice = &self.small[small_from..];
                small_from = self.small.len();
                Some(slice)
            }
            None => None,
        })
    }

    /// Marks the next `sent` of the unsent bytes as sent.
    #[inline]
    pub(super) fn advance(&mut self, mut sent: usize) {
        while let Some((position, bytes)) = self.large.front() {
            let step = sent.min(position - self.small_sent);
            self.small_sent += step;
            sent -= step;
            if self.small_sent < *position {
                break;
            }
            let step = sent.min(bytes.len() - self.large_sent);
            self.large_sent += step;
            self.large_unsent -= step;
            sent -= step;
            if self.large_sent < bytes.len() {
                break;
            }
            self.large.pop_front();
            self.large_sent = 0;
        }
        self.small_sent = self.small.len().min(self.small_sent + sent);
        self.give_back();
    }

    fn give_back(&mut self) {
        if self.small_sent == self.small.len() && self.large.is_empty() {
            self.small_sent = 0;
            if self.small.capacity() > KEPT_CAPACITY {
                self.small = Vec::new();
            }
            self.small.clear();
            if self.large.capacity() > 0 {
                self.large = VecDeque::new();
            }
        } else if self.small_sent > KEPT_CAPACITY && self.small_sent > self.small.len() / 2 {
            self.small.drain(..self.small_sent);
            for (position, _) in &mut self.large {
                *position -= self.small_sent;
            }
            self.small_sent = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Meter;

    #[test]
    fn any_sequence_of_partial_sends_yields_the_same_stream() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..300 {
            let (mut outgoing, mut expected, mut sent) = (Outgoing::default(), vec![], vec![]);
            for _ in 0..random.usize(1..40) {
                let value = vec![random.u8(..); random.usize(0..2000)];
                reply::bytes(&mut expected, &value);
                if random.bool() {
                    outgoing.push_value(Body::Inline(&value));
                } else {
                    outgoing.push_value(Body::Whole(Meter::default().share(value)));
                }
                let most = random.usize(0..3000);
                drain(&mut outgoing, most, &mut sent);
            }
            assert_eq!(sent.len() + outgoing.unsent(), expected.len());
            drain(&mut outgoing, usize::MAX, &mut sent);
            assert_eq!(sent, expected);
            assert_eq!(outgoing.unsent(), 0);
            assert!(outgoing.memory() <= KEPT_CAPACITY);
        }
    }

    fn drain(outgoing: &mut Outgoing, most: usize, sent: &mut Vec<u8>) {
        let stream: Vec<u8> = outgoing.slices().flatten().copied().take(most).collect();
        sent.extend_from_slice(&stream);
        outgoing.advance(stream.len());
    }
}
