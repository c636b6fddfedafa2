//! Errors of shared memory.

use std::io;

use rustix::io::Errno;

/// Reason why memory could not be shared, or can no longer be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    System {
        /// Attempted action.
        what: &'static str,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// The peer passed something unexpected, which is not used.
    ///
    /// Use a socket instead.
    #[error("cannot use {what} of the peer: {found}")]
    Refused {
        /// Expected content.
        what: &'static str,
        /// Description of what the peer passed.
        found: String,
    },
    /// The memory of another process could not be read.
    #[error("cannot read {length} bytes at {address:#x} of process {process}: {source}")]
    RemoteRead {
        /// Process id.
        process: u32,
        /// Claimed address of the bytes.
        address: u64,
        /// Claimed number of bytes.
        length: usize,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// A peer broke the protocol in shared memory. The connection is unusable.
    #[error(
        "the peer broke the ring: it claims that {claimed} bytes are in a ring of {capacity}; \
         close the connection"
    )]
    Broken {
        /// Number of bytes that would be in the ring.
        claimed: u64,
        /// Maximum number of bytes in the ring.
        capacity: u64,
    },
}

/// Result of an operation on shared memory.
pub type Result<T, E = ShmError> = std::result::Result<T, E>;

impl ShmError {
    /// Converts the error of a system call, for `map_err`.
    pub(crate) fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::System {
            what,
            source: error.into(),
        }
    }

    pub(crate) fn refused(what: &'static str, found: impl Into<String>) -> Self {
        Self::Refused {
            what,
            found: found.into(),
        }
    }
}

impl From<ShmError> for io::Error {
    fn from(error: ShmError) -> Self {
        let kind = match &error {
            ShmError::System { source, .. } | ShmError::RemoteRead { source, .. } => source.kind(),
            ShmError::Refused { .. } | ShmError::Broken { .. } => io::ErrorKind::InvalidData,
        };
        Self::new(kind, error)
    }
}

/// Repeats a system call while signals interrupt it.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
