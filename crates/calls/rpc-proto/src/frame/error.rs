//! What can be wrong with the bytes of a peer.

use thiserror::Error;

use super::VERSION;

/// Bytes that are no frame, or a frame that is refused. The connection they came over cannot be
/// used any more, because nobody knows where the next frame begins.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// Something else than a frame, by its first bytes.
    #[error("no frame of rdzv: it begins with '{0}' instead of 'rdzc'")]
    Magic(String),
    /// A TLS handshake, by its first bytes.
    #[error(
        "the peer speaks TLS and this worker does not: give certificates to all workers or to none"
    )]
    Tls,
    /// Another version of the format.
    #[error(
        "the peer speaks version {0} of the frame format and this worker version {VERSION}: \
         run the same rdzv on every worker"
    )]
    Version(u8),
    /// A kind that does not exist.
    #[error("there are no frames of kind {0}")]
    Kind(u8),
    /// Bits that are kept for later are in use.
    #[error("bits of {0} that must be 0 are not")]
    Reserved(&'static str),
    /// A part is said to be at a kind of place that does not exist.
    #[error("a part cannot be at a place of kind {0}")]
    Location(u16),
    /// The body is too long.
    #[error("a body of {announced} bytes is more than the limit of {limit}")]
    Body {
        /// How long the body is said to be, in bytes.
        announced: u64,
        /// How long it may be.
        limit: u32,
    },
    /// There are too many parts.
    #[error("{announced} parts are more than the limit of {limit}")]
    Sections {
        /// How many there are said to be.
        announced: u64,
        /// How many there may be.
        limit: u16,
    },
    /// There is no memory for a body or part.
    #[error("this worker has no memory for a body or part of {0} bytes")]
    NoMemory(usize),
    /// What is given back is cut off.
    #[error("a release of {0} bytes is no list of parts")]
    Release(usize),
    /// Body and parts together are too long.
    #[error("a message of {announced} bytes or more is over the limit of {limit}")]
    Total {
        /// How long they are said to be, in bytes, as far as was looked.
        announced: u64,
        /// How long they may be.
        limit: u64,
    },
}
