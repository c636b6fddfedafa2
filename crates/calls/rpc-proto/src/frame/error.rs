//! Errors in the bytes of a peer.

use thiserror::Error;

use super::VERSION;

/// Reason to refuse a frame.
///
/// A connection with a refused frame is unusable, because the beginning of the next frame is
/// unknown.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FrameError {
    /// First bytes that are not those of a frame.
    #[error("the bytes are not an rdzv frame: they begin with '{0}' instead of 'rdzc'")]
    Magic(String),
    /// First bytes of a TLS handshake or alert.
    #[error(
        "the peer uses TLS, but this worker does not: give certificates to all workers or to none"
    )]
    Tls,
    /// Another version of the format.
    #[error(
        "the peer uses version {0} of the frame format, but this worker uses version {VERSION}: \
         run the same version of rdzv on all workers"
    )]
    Version(u8),
    /// Unknown kind of frame.
    #[error("the frame has the unknown kind {0}")]
    Kind(u8),
    /// Reserved bits are set.
    #[error("reserved bits of {0} are not 0")]
    Reserved(&'static str),
    /// Unknown kind of location of a part.
    #[error("a part has the unknown location kind {0}")]
    Location(u16),
    /// The body is too long.
    #[error("a body of {announced} bytes exceeds the limit of {limit}")]
    Body {
        /// Announced length of the body, in bytes.
        announced: u64,
        /// Maximum length.
        limit: u32,
    },
    /// There are too many parts.
    #[error("{announced} parts exceed the limit of {limit}")]
    Sections {
        /// Announced number of parts.
        announced: u64,
        /// Maximum number of parts.
        limit: u16,
    },
    /// There is no memory for a body or part.
    #[error("this worker cannot allocate {0} bytes for a body or part")]
    NoMemory(usize),
    /// The list of released parts is cut off.
    #[error("a release of {0} bytes is not a list of parts")]
    Release(usize),
    /// Body and parts together are too long.
    #[error("a message of at least {announced} bytes exceeds the limit of {limit}")]
    Total {
        /// Announced length in bytes, as far as the sum is known.
        announced: u64,
        /// Maximum length.
        limit: u64,
    },
}
