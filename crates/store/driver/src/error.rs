//! Errors of a store.
//!
//! Every error names the peer or file, the key and the time spent.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use rdzv_store_proto::number;
use thiserror::Error;

/// Reason why a store operation failed.
/// Texts are fragments that follow "failed to …: ".
#[derive(Debug, Error)]
pub enum StoreError {
    /// The keys did not appear in time.
    #[error(
        "wait timeout after {}ms, keys: {} (store {store}; still missing: {})",
        .elapsed.as_millis(),
        .keys.join(", "),
        .missing.join(", ")
    )]
    WaitTimeout {
        /// Address or path of the store.
        store: String,
        /// All keys that the call waited for.
        keys: Vec<String>,
        /// The keys that were still absent at the end.
        missing: Vec<String>,
        /// Time waited.
        elapsed: Duration,
    },
    /// Not all members came to a barrier in time.
    #[error(
        "barrier timeout after {}ms, key: {key} (store {store}; {arrived} of {world_size} members came)",
        .elapsed.as_millis()
    )]
    BarrierTimeout {
        /// Address or path of the store.
        store: String,
        /// Key of the barrier.
        key: String,
        /// Number of members that had come, according to the store.
        arrived: i64,
        /// Expected number of members.
        world_size: i64,
        /// Time waited.
        elapsed: Duration,
    },
    /// No connection succeeded in time.
    #[error(
        "connect to the store at {peer} within {}ms ({attempts} attempts, the last: {reason}); \
         check that rank 0 is running and that the address and port are right",
        .elapsed.as_millis()
    )]
    Connect {
        /// Requested `host:port`, and the numeric address of the last attempt.
        peer: String,
        /// Number of attempts to connect.
        attempts: u32,
        /// Error of the last attempt.
        reason: String,
        /// Duration of the attempts.
        elapsed: Duration,
    },
    /// The peer exists but does not speak the store protocol.
    #[error("talk to {peer}: it is not a store ({found}); check the address and port")]
    NotAStore {
        /// Address of the peer.
        peer: String,
        /// Answer or action of the peer instead.
        found: String,
    },
    /// One side does not accept the other side's proof of membership in the job.
    #[error("talk to the store at {peer}: {why}")]
    Refused {
        /// Address of the peer.
        peer: String,
        /// Reason, and what to do.
        why: String,
    },
    /// The connection broke. The client object cannot be used any more.
    #[error(
        "{operation} key {key}: the store at {peer} closed the connection after {}ms ({source}); {cause}",
        .elapsed.as_millis()
    )]
    Disconnected {
        /// Address of the peer.
        peer: String,
        /// The operation that noticed it.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Duration of the operation until now.
        elapsed: Duration,
        /// The probable cause.
        cause: String,
        /// The error of the socket.
        #[source]
        source: io::Error,
    },
    /// The store did not answer a request that needs no waiting.
    #[error(
        "{operation} key {key}: the store at {peer} did not answer within {}ms",
        .elapsed.as_millis()
    )]
    NoAnswer {
        /// Address of the peer.
        peer: String,
        /// The operation.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Time waited.
        elapsed: Duration,
    },
    /// The reply needs more memory than the client allows for one reply.
    #[error(
        "{operation} key {key}: the reply of the store at {peer} is at least {size} bytes long, and \
         at most {limit} are accepted; check that it is the store of this job, and set \
         `TcpStoreOptions::max_reply_bytes` if the reply is meant to be that long"
    )]
    ReplyTooLong {
        /// Address of the peer.
        peer: String,
        /// The operation.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Memory that the reply needs by the lengths declared until now.
        size: u64,
        /// The limit.
        limit: usize,
    },
    /// The peer accepted the connection and did not answer on it in time.
    #[error(
        "talk to {peer}: it is not a store, or one that is overloaded ({found} for {}ms); check the \
         address and port",
        .elapsed.as_millis()
    )]
    Silent {
        /// Address of the peer.
        peer: String,
        /// Action of the peer instead of an answer.
        found: String,
        /// Duration of the attempts.
        elapsed: Duration,
    },
    /// The server could not be started.
    #[error(
        "listen on {address}: {source}; choose an address of this host and a port that is free"
    )]
    Listen {
        /// The requested address.
        address: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// Not all clients joined at construction.
    #[error(
        "Timed out after {} seconds waiting for clients. {joined}/{expected} clients joined.",
        .elapsed.as_secs()
    )]
    Join {
        /// Number of clients that had joined.
        joined: i64,
        /// Expected number of clients.
        expected: i64,
        /// Time waited.
        elapsed: Duration,
    },
    /// A pop found nothing.
    #[error("queue is empty: {key}")]
    QueueEmpty {
        /// Name of the queue.
        key: String,
    },
    /// The value under the key is not a number (`add`, `barrier`).
    #[error("add to key {key}: its value {value:?} is not a number (stoll)")]
    NotANumber {
        /// The key.
        key: String,
        /// Beginning of the value.
        value: String,
    },
    /// The store does not have this operation.
    #[error("{operation} support is not implemented by {store}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The store.
        store: String,
    },
    /// An argument is invalid; the text names it and the reason.
    #[error("{0}")]
    Argument(String),
    /// A file of a file store could not be used.
    #[error("{operation} the store file {path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// The operation.
        operation: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The service that holds the store failed, or refused the operation.
    #[error("{operation} key {key}: {what} at {place} after {}ms; {remedy}", .elapsed.as_millis())]
    Service {
        /// The operation.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// The problem.
        what: String,
        /// Kind and address of the service.
        place: String,
        /// Duration of the attempts.
        elapsed: Duration,
        /// A remedy.
        remedy: &'static str,
    },
    /// The thread in the call requested its end.
    /// See [`interruptible`](crate::interruptible).
    #[error("{operation} key {key}: the caller gave up after {}ms", .elapsed.as_millis())]
    Interrupted {
        /// The operation.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Time waited.
        elapsed: Duration,
    },
    /// The store holds or sent invalid data.
    #[error("read from {store}: {what}")]
    Corrupt {
        /// Address or path of the store.
        store: String,
        /// The problem.
        what: String,
    },
}

/// Returns the number that a key holds; an absent or empty value counts as 0.
/// The error shows the beginning of a value that is not a number.
pub(crate) fn number_held(key: &str, held: Option<&Bytes>) -> Result<i64, StoreError> {
    const SHOWN: usize = 32;
    match held {
        Some(text) if !text.is_empty() => number::parse(text).ok_or_else(|| {
            let shown = String::from_utf8_lossy(&text[..text.len().min(SHOWN)]);
            StoreError::NotANumber {
                key: key.to_owned(),
                value: shown.into_owned(),
            }
        }),
        _ => Ok(0),
    }
}
