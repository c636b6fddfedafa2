//! The c10d wire: the encoding of requests and replies, for both ends of a connection.
//!
//! There is no frame around anything. A connection is a stream of requests, each an opcode and
//! the body that the opcode calls for; replies carry no opcode and come in the order of requests.
//! All numbers are little-endian.
//!
//! ```text
//!   request   +----+------------------+
//!             | op | body ...         |     op: u8
//!             +----+------------------+
//!
//!   bytes     +-------------+-----------------+
//!             | length: u64 | length bytes    |     keys and values alike
//!             +-------------+-----------------+
//!
//!   keys      +------------+-------+-------+--       pairs   +------------+-----+-------+--
//!             | count: u64 | bytes | bytes | ...             | count: i64 | key | value | ...
//!             +------------+-------+-------+--               +------------+-----+-------+--
//! ```
//!
//! | file | what |
//! |---|---|
//! | [`fields`] | the parts of a request's body |
//! | [`request`] | the table of opcodes; reading a request that is there in whole (server); writing requests (client) |
//! | [`assemble`] | collecting a request that comes in pieces, bounded by what has arrived (server) |
//! | [`other_protocol`] | the kind of a server that is no store (client) |
//! | [`reply`] | writing replies (server) and collecting them (client) |
//!
//! Nothing here trusts a length: a declared length is checked against its limit as soon as it is
//! read, and memory grows only with bytes that arrived.

pub mod assemble;
pub mod fields;
pub mod other_protocol;
pub mod reply;
pub mod request;

use thiserror::Error;

/// Bodies of at least this many bytes get a buffer of their own, which becomes the stored value or
/// the answer without being copied; smaller ones are copied together.
pub const LARGE_BODY: usize = 16 << 10;

/// A buffer never grows further ahead of the bytes received than they already fill it, or this.
pub(crate) const GROWTH_STEP: usize = 64 << 10;

/// Why bytes are not a request or a reply. The connection cannot be used any further.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum WireError {
    /// No operation has this number.
    #[error("unknown opcode 0x{0:02x}")]
    UnknownOpcode(u8),
    /// A key is longer than allowed.
    #[error("key of {declared} bytes, at most {limit} are accepted")]
    KeyTooLong {
        /// The length that was declared.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A value is longer than allowed.
    #[error("value of {declared} bytes, at most {limit} are accepted")]
    ValueTooLong {
        /// The length that was declared.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A list has more entries than allowed.
    #[error("list of {declared} keys, at most {limit} are accepted")]
    TooManyKeys {
        /// The count that was declared.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A byte of a reply is none of those that can stand there.
    #[error("reply byte 0x{found:02x} where {expected} was expected")]
    UnexpectedReply {
        /// The byte received.
        found: u8,
        /// The bytes expected.
        expected: &'static str,
    },
    /// A reply needs more memory than the client gives it.
    #[error("reply of at least {declared} bytes, at most {limit} are accepted")]
    ReplyTooLong {
        /// Memory that it needs by the lengths declared so far.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A count or length in a reply cannot be.
    #[error("reply with the impossible length {0}")]
    ImpossibleLength(i64),
}

/// A large body that arrives in pieces, in a buffer of its own.
#[derive(Debug)]
pub(crate) struct Arriving {
    buffer: Vec<u8>,
    target: usize,
}

impl Arriving {
    /// Begins a body of this length.
    pub(crate) fn new(target: usize) -> Self {
        let buffer = Vec::new();
        Self { buffer, target }
    }

    /// Number of bytes that have not arrived.
    pub(crate) fn missing(&self) -> usize {
        self.target.saturating_sub(self.buffer.len())
    }

    /// Returns the buffer with room for more bytes, unless the body is complete.
    ///
    /// Capacity at most doubles what is there (or adds [`GROWTH_STEP`]) and ends at exactly the
    /// length of the body.
    pub(crate) fn space(&mut self) -> &mut Vec<u8> {
        if self.missing() > 0 && self.buffer.len() == self.buffer.capacity() {
            let ahead = self.buffer.len().max(GROWTH_STEP);
            self.buffer.reserve_exact(ahead.min(self.missing()));
        }
        &mut self.buffer
    }

    /// Takes bytes off the front of `input` until the body is complete or the input is used up.
    /// Returns the body if it is complete.
    pub(crate) fn feed(&mut self, input: &mut &[u8]) -> Option<Vec<u8>> {
        while self.missing() > 0 && !input.is_empty() {
            let room = self.space().capacity().min(self.target) - self.buffer.len();
            let (now, later) = input.split_at(room.min(input.len()));
            self.buffer.extend_from_slice(now);
            *input = later;
        }
        (self.missing() == 0).then(|| std::mem::take(&mut self.buffer))
    }
}
