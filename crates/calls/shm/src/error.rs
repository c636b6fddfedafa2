//! What can go wrong with memory that is shared.

use std::io;

use rustix::io::Errno;

/// Why memory could not be shared, or cannot be used any longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// A call of the system failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// What a peer passed is not what was agreed, so it was not touched. Use a socket instead.
    #[error("what the peer passed as {what} is refused: {found}")]
    Refused {
        /// What it should have been.
        what: &'static str,
        /// What is wrong with it.
        found: String,
    },
    /// The memory of another process could not be read.
    #[error("cannot read {length} bytes at {address:#x} of process {process}: {source}")]
    RemoteRead {
        /// Its number.
        process: u32,
        /// Where the bytes were said to begin.
        address: u64,
        /// How many they were said to be.
        length: usize,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// A peer broke the protocol in shared memory. The connection is of no use any more.
    #[error(
        "the peer broke the ring: by its words {claimed} bytes are in a ring of {capacity}; \
         close the connection"
    )]
    Broken {
        /// How many bytes would be in the ring.
        claimed: u64,
        /// How many there can be.
        capacity: u64,
    },
}

/// The result of something that fails as sharing memory does.
pub type Result<T, E = ShmError> = std::result::Result<T, E>;

impl ShmError {
    /// For `map_err` of a system call.
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

/// Tries again as long as a signal interrupts.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
