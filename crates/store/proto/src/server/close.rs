//! The reasons for which a server closes a connection.
//!
//! The wire has no error reply, so most reasons appear only in the log of the server.

use std::time::Duration;

use thiserror::Error;

use crate::wire::StoreWireError;

/// Reason for which a connection is closed.
///
/// The message usually states what the peer did and, if its first bytes show it, what kind of peer
/// it is.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The first bytes are not those of a store client.
    #[error(
        "its first bytes {first:02x?} are not those of a store client; it looks like {looks_like}"
    )]
    NotAStoreClient {
        /// The bytes; at most [`PREAMBLE_LENGTH`](super::PREAMBLE_LENGTH) of them.
        first: Vec<u8>,
        /// The kind of peer that sends such bytes.
        looks_like: &'static str,
    },
    /// A second `VALIDATE` arrived.
    #[error("it sent VALIDATE a second time")]
    ValidatedTwice,
    /// The peer did not send `VALIDATE` in time.
    #[error(
        "it did not identify itself within {} s of connecting; \
         a port scanner, a health check or a stuck client does that", .0.as_secs_f64()
    )]
    Silent(Duration),
    /// The bytes are not a request.
    #[error("it sent a bad request: {0}")]
    Wire(#[from] StoreWireError),
    /// `ADD` or `BARRIER` applied to a value that is not a number.
    #[error("it requested {operation} on key {key:?}, whose value {value:?} is not a number")]
    NotANumber {
        /// The operation.
        operation: &'static str,
        /// The beginning of the key.
        key: String,
        /// The beginning of the value.
        value: String,
    },
    /// The driver refuses the peer for the reason in the text.
    #[error("{0}")]
    Refused(String),
    /// The request is reserved for agents.
    #[error(
        "it has not proven that it belongs to the job, but its request is about {0}, which is \
         reserved for the job's agents"
    )]
    ForAgents(String),
    /// The extension closes the connection for the reason in the text.
    #[error("{0}")]
    Extension(String),
    /// The extension no longer needs the connection; the text has the reason.
    ///
    /// The peer did nothing wrong.
    #[error("{0}")]
    NotNeeded(String),
    /// The store has the maximum number of keys and queues for this peer.
    #[error(
        "the store has reached the limit of {limit} keys and queues for this peer; delete keys, or \
         raise the store's limit (rdzv store --max-keys)"
    )]
    TooManyKeys {
        /// The limit.
        limit: usize,
    },
    /// The peer holds too many keys.
    #[error(
        "{holder} has reached its share of {limit} keys and queues; delete keys, or raise the \
         store's limit (rdzv store --max-keys)"
    )]
    TooManyKeysOf {
        /// Connection or address.
        holder: &'static str,
        /// The share of the holder.
        limit: usize,
    },
    /// The peer holds too much memory.
    #[error(
        "its request needs {wanted} bytes, but {holder} already uses {held} of its share of \
         {limit} bytes; delete keys, read replies faster, or raise the memory limit (rdzv store \
         --max-memory, rdzv run --rdzv-conf store_max_memory)"
    )]
    OverShare {
        /// Connection or address.
        holder: &'static str,
        /// Bytes requested.
        wanted: usize,
        /// Bytes held.
        held: usize,
        /// The share of the holder.
        limit: usize,
    },
    /// The peer's address has too many connections.
    #[error(
        "its address has reached the limit of {limit} open connections for an address without an \
         agent; raise the limit of connections (rdzv store --max-connections)"
    )]
    TooManyConnectionsOfAddress {
        /// The share.
        limit: usize,
    },
    /// Descriptors are scarce, and the peer is not an agent.
    #[error(
        "the process is short of descriptors and reserves the remaining ones for the job's agents; \
         raise the limit of open files (ulimit -n)"
    )]
    OutOfDescriptors,
    /// The connection has too many pending waits.
    #[error("it has reached the limit of {limit} pending waits; use one connection for each wait")]
    TooManyWaits {
        /// The limit.
        limit: usize,
    },
    /// Too many replies were unread when the store was emptied.
    #[error("it had not read replies of {unsent} bytes of memory when the store was cleared")]
    Unread {
        /// Bytes of replies that the peer had not read.
        unsent: usize,
    },
    /// The server has its maximum number of connections.
    #[error(
        "the store has reached its limit of {limit} open connections; raise the limit (rdzv store \
         --max-connections), or find the clients that keep them open"
    )]
    TooManyConnections {
        /// The limit.
        limit: usize,
    },
    /// The request or its reply would need more memory than is allowed.
    #[error(
        "its request needs {wanted} bytes while {used} of {limit} are in use; \
         delete keys, read replies faster, or raise the memory limit (rdzv store --max-memory, rdzv \
         run --rdzv-conf store_max_memory)"
    )]
    OutOfMemory {
        /// Bytes requested.
        wanted: usize,
        /// Bytes in use.
        used: usize,
        /// The limit.
        limit: usize,
    },
}

/// Returns the kind of peer that sends these first bytes.
pub(super) fn looks_like(first: &[u8]) -> &'static str {
    const HTTP: [&[u8]; 8] = [
        b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"DELE", b"CONN", b"PRI ",
    ];
    if HTTP.iter().any(|method| first.starts_with(method)) {
        return "an HTTP client: a browser, a health check or a metrics scraper on the wrong port";
    }
    if first.starts_with(b"SSH-") {
        return "an SSH client on the wrong port";
    }
    if first.starts_with(&[0x16, 0x03]) {
        return "a TLS client; this port speaks the plain c10d store protocol";
    }
    // Until PyTorch 2.1 there was no VALIDATE. The first request has an opcode up to 11 and starts
    // with the length of a key or a number of keys, whose upper bytes are zero.
    if let [0..=11, _, _, 0, 0] = first {
        return "a pre-2.2 PyTorch client, whose protocol is not supported; update it to 2.2 or later";
    }
    if first.first() == Some(&0) {
        return "a store client with another magic number or byte order";
    }
    "neither a PyTorch store client nor any other known client"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_distinguished_by_their_first_bytes() {
        for (first, word) in [
            (&b"GET /"[..], "HTTP"),
            (b"SSH-2", "SSH"),
            (b"\x16\x03\x01\x02\x00", "TLS"),
            (b"\x00\x05\x00\x00\x00", "pre-2.2"),
            (b"\x03\x05\x00\x00\x00", "pre-2.2"),
            (b"\x00\x3c\x85\xf7\xce", "magic"),
            (b"\xff", "neither"),
        ] {
            assert!(looks_like(first).contains(word), "{first:02x?}");
        }
    }
}
