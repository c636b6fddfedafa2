//! The c10d wire: the encoding of requests and replies.
//!
//! The client and the server use the same encoding.
//!
//! There are no frames. A connection is a stream of requests; each is an opcode and the body of
//! that opcode. Replies have no opcode and come in the order of requests, but the reply to a wait
//! comes when the wait is over. All numbers are little-endian.
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
//! | file | content |
//! |---|---|
//! | [`fields`] | the parts of a request's body |
//! | [`request`] | the opcodes; reading a complete request (server); writing requests (client) |
//! | [`assemble`] | assembling a request that arrives in pieces, with bounded memory (server) |
//! | [`other_protocol`] | the kind of a server that is not a store (client) |
//! | [`reply`] | writing replies (server) and collecting them (client) |
//!
//! The reader checks a declared length against its limit immediately, and memory grows only with
//! bytes that arrived.

pub mod assemble;
pub mod fields;
pub mod other_protocol;
pub mod reply;
pub mod request;

use thiserror::Error;

/// Minimum size of a body that gets its own buffer, in bytes.
/// That buffer becomes the stored value or the answer without a copy. Smaller bodies share one
/// buffer, and so does a large body whose whole request was read in one piece.
pub const LARGE_BODY: usize = 16 << 10;

/// Maximum growth of a buffer with fewer received bytes than this.
/// A buffer with more received bytes grows by at most their number.
pub(crate) const GROWTH_STEP: usize = 64 << 10;

/// Reason why bytes are not a request or a reply.
/// The connection cannot be used afterwards.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StoreWireError {
    /// The server supports no request with this number.
    #[error("unknown opcode 0x{0:02x}")]
    UnknownOpcode(u8),
    /// A key is longer than allowed.
    #[error("a key of {declared} bytes exceeds the limit of {limit}")]
    KeyTooLong {
        /// Declared length.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A value or the body of an extension's request is longer than allowed.
    #[error("a value of {declared} bytes exceeds the limit of {limit}")]
    ValueTooLong {
        /// Declared length.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A list has more entries than allowed.
    #[error("a list of {declared} keys exceeds the limit of {limit}")]
    TooManyKeys {
        /// Declared count.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A byte of a reply is not one of the valid bytes.
    #[error("the reply has the byte 0x{found:02x} instead of {expected}")]
    UnexpectedReply {
        /// The received byte.
        found: u8,
        /// The expected bytes.
        expected: &'static str,
    },
    /// A reply needs more memory than the client allows.
    #[error("a reply of at least {declared} bytes exceeds the limit of {limit}")]
    ReplyTooLong {
        /// Memory that the reply needs by the lengths declared until now.
        declared: u64,
        /// The limit.
        limit: usize,
    },
    /// A count or length in a reply is impossible.
    #[error("the reply has the impossible length {0}")]
    ImpossibleLength(i64),
}

/// A large body that arrives in pieces, in its own buffer.
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

    /// Returns the number of bytes that have not arrived.
    pub(crate) fn missing(&self) -> usize {
        self.target.saturating_sub(self.buffer.len())
    }

    /// Returns the buffer with space for more bytes, unless the body is complete.
    ///
    /// The requested capacity at most doubles the received bytes (or adds [`GROWTH_STEP`]), and is
    /// never more than the length of the body.
    pub(crate) fn space(&mut self) -> &mut Vec<u8> {
        if self.missing() > 0 && self.buffer.len() == self.buffer.capacity() {
            let ahead = self.buffer.len().max(GROWTH_STEP);
            self.buffer.reserve_exact(ahead.min(self.missing()));
        }
        &mut self.buffer
    }

    /// Consumes bytes from the front of `input`; returns a complete body.
    /// Stops when the body is complete or the input is used up.
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
