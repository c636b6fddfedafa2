//! Store errors.
//!
//! Errors name details that help to find the cause, such as the peer, the key and the elapsed time.

use std::borrow::Cow;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use rdzv_store_proto::number;
use thiserror::Error;

/// Error that a store operation returns.
///
/// If an error has advice, it is usually on a second line after `help: `.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The keys, or the change of a value, did not appear in time.
    #[error(
        "wait timeout after {}ms, keys: {} (store {store}; still missing: {})",
        .elapsed.as_millis(),
        shown_all(.keys),
        shown_all(.missing)
    )]
    WaitTimeout {
        /// Address, path or name of the store.
        store: String,
        /// All keys that the call waited for.
        keys: Vec<String>,
        /// Keys that were still absent when the wait timed out.
        /// A TCP store examines only the first 64 keys.
        missing: Vec<String>,
        /// Time waited.
        elapsed: Duration,
    },
    /// Not all members arrived at a barrier in time.
    #[error(
        "barrier timeout after {}ms, key: {} (store {store}; {arrived} of {world_size} members \
         arrived)",
        .elapsed.as_millis(),
        shown(.key)
    )]
    BarrierTimeout {
        /// Address, path or name of the store.
        store: String,
        /// Key of the barrier.
        key: String,
        /// Number of members that had arrived, according to the store.
        arrived: i64,
        /// Expected number of members.
        world_size: i64,
        /// Time waited.
        elapsed: Duration,
    },
    /// No connection attempt succeeded in time.
    #[error(
        "cannot connect to the store at {peer} within {}ms (attempts: {attempts}, the last: {reason})\n\
         help: check that the process that hosts the store is running, and that the address and \
         port are right",
        .elapsed.as_millis()
    )]
    Connect {
        /// Requested `host:port`, and the last numeric address tried, if it differs.
        peer: String,
        /// Number of connection attempts.
        attempts: u32,
        /// Error of the most recent attempt.
        reason: String,
        /// Total duration of the attempts.
        elapsed: Duration,
    },
    /// The peer exists but does not speak the store protocol.
    #[error("{peer} does not speak the store protocol ({found})\nhelp: check the address and port")]
    NotAStore {
        /// Address of the peer.
        peer: String,
        /// Description of what the peer sent or did instead.
        found: String,
    },
    /// The proof of membership in the job was missing on one side, or rejected.
    #[error("cannot use the store at {peer}: {why}")]
    Refused {
        /// Address of the peer.
        peer: String,
        /// Reason, with advice for the user.
        why: String,
    },
    /// The connection broke. The client can no longer be used.
    #[error(
        "cannot {}: the connection to the store at {peer} was lost after {}ms ({source}); {cause}",
        subject(.operation, .key),
        .elapsed.as_millis()
    )]
    Disconnected {
        /// Address of the peer.
        peer: String,
        /// Operation that detected the broken connection.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Time from the start of the operation to the failure.
        elapsed: Duration,
        /// Probable cause.
        cause: String,
        /// Socket error.
        #[source]
        source: io::Error,
    },
    /// The store did not answer in time, although the request requires no waiting.
    #[error(
        "cannot {}: the store at {peer} did not answer within {}ms",
        subject(.operation, .key),
        .elapsed.as_millis()
    )]
    NoAnswer {
        /// Address of the peer.
        peer: String,
        /// Operation that timed out.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Time waited.
        elapsed: Duration,
    },
    /// The reply exceeds the client's memory limit for one reply.
    #[error(
        "cannot {}: the reply of the store at {peer} needs at least {size} bytes \
         of memory, which exceeds the limit of {limit}\n\
         help: check that it is the store of this job; in Rust, \
         `TcpStoreOptions::max_reply_bytes` raises the limit",
        subject(.operation, .key)
    )]
    ReplyTooLong {
        /// Address of the peer.
        peer: String,
        /// Operation whose reply was too large.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Memory that the reply requires, according to the lengths read until then.
        size: u64,
        /// Memory limit of the client.
        limit: usize,
    },
    /// The peer accepted the connection but did not identify itself as a store.
    #[error(
        "{peer} does not speak the store protocol, or is overloaded ({found}; waited {}ms)\n\
         help: check the address and port",
        .elapsed.as_millis()
    )]
    Silent {
        /// Address of the peer.
        peer: String,
        /// Description of what the peer did instead of answering.
        found: String,
        /// Total duration of the attempts.
        elapsed: Duration,
    },
    /// The server could not be started.
    #[error(
        "cannot listen on {address}: {source}\n\
         help: choose an address of this host and a free port"
    )]
    Listen {
        /// Address that the caller requested.
        address: String,
        /// Error that prevented the start.
        #[source]
        source: io::Error,
    },
    /// Not all clients joined while the store was being created.
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
    /// The queue was empty.
    #[error("queue is empty: {}", shown(.key))]
    QueueEmpty {
        /// Name of the queue.
        key: String,
    },
    /// The value under the key is not a number (`add`, `barrier`).
    #[error("cannot add to key {}: its value {value:?} is not a number", shown(.key))]
    NotANumber {
        /// Key whose value is not a number.
        key: String,
        /// Beginning of the value.
        value: String,
    },
    /// The store does not support this operation.
    #[error("{operation} support is not implemented by {store}")]
    Unsupported {
        /// Operation that is not supported.
        operation: &'static str,
        /// Description of the store.
        store: String,
    },
    /// An argument is invalid. The message names the argument and the reason.
    #[error("{0}")]
    Argument(String),
    /// The file of a file store could not be used.
    #[error("cannot {operation} the store file {path}: {source}")]
    File {
        /// Path of the file.
        path: String,
        /// Operation that failed.
        operation: &'static str,
        /// Error from the system.
        #[source]
        source: io::Error,
    },
    /// The service that stores the data failed or rejected the operation.
    #[error("cannot {}: {what} at {endpoint} after {}ms\nhelp: {remedy}", subject(.operation, .key), .elapsed.as_millis())]
    Service {
        /// Operation that failed.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Description of the problem.
        what: String,
        /// Kind and address of the service.
        endpoint: String,
        /// Total duration of the attempts.
        elapsed: Duration,
        /// Advice for the user.
        remedy: &'static str,
    },
    /// The calling thread interrupted the operation.
    /// See [`interruptible`](crate::interruptible).
    #[error("cannot {}: the caller interrupted the wait after {}ms", subject(.operation, .key), .elapsed.as_millis())]
    Interrupted {
        /// Operation that was interrupted.
        operation: &'static str,
        /// Key of the operation; empty if it has none.
        key: String,
        /// Time waited.
        elapsed: Duration,
    },
    /// The store contains or sent invalid data.
    #[error("cannot read from {store}: {what}")]
    Corrupt {
        /// Address, path or name of the store.
        store: String,
        /// Description of the problem.
        what: String,
    },
}

/// Returns a key for an error: all of it, or its beginning and its length.
pub fn shown(key: &str) -> Cow<'_, str> {
    const SHOWN: usize = 128;
    if key.len() <= SHOWN {
        return Cow::Borrowed(key);
    }
    let beginning = &key[..key.floor_char_boundary(SHOWN)];
    Cow::Owned(format!("{beginning}... ({} bytes)", key.len()))
}

/// Returns an operation and its key, if it has one, for an error.
pub fn subject(operation: &str, key: &str) -> String {
    if key.is_empty() {
        return operation.to_owned();
    }
    format!("{operation} key {}", shown(key))
}

/// Returns keys for an error: all, or the first ones and a number.
pub fn shown_all(keys: &[String]) -> String {
    const SHOWN: usize = 32;
    let first: Vec<_> = keys.iter().take(SHOWN).map(|key| shown(key)).collect();
    match keys.len().saturating_sub(SHOWN) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// Returns the number stored under a key; an absent or empty value counts as 0.
/// For a value that is not a number, the error shows its beginning.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_without_a_key_names_none() {
        let no_answer = |operation, key: &str| StoreError::NoAnswer {
            peer: "head:29400".to_owned(),
            operation,
            key: key.to_owned(),
            elapsed: Duration::from_millis(7),
        };
        for (operation, key, text) in [
            ("list the keys", "", "cannot list the keys: the store"),
            ("get", "a", "cannot get key a: the store"),
        ] {
            let error = no_answer(operation, key).to_string();
            assert!(error.starts_with(text), "{error}");
        }
    }
}
