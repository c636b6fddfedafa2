//! Operations on one connection, and their errors.
//!
//! Most errors name the operation, the key and the server. The error of a lost connection also
//! names the probable cause.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use rdzv_store_proto::client::{Expects, OperationFailure, StoreOperation};
use rdzv_store_proto::wire::StoreWireError;
use rdzv_store_proto::wire::reply::{CheckReply, Reply, Shape};
use rdzv_store_proto::wire::request;

use super::link::{Broken, Link};
use crate::error::{StoreError, subject};

/// Shortest time limit for an immediate answer, however short the timeout.
pub(super) const LEAST_REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum number of keys that are checked one by one for the error of a wait.
const MOST_EXAMINED: usize = 64;

/// Names of the operations that a server may refuse, for errors.
pub(super) const ADD: &str = "add to";
pub(super) const BARRIER: &str = "pass the barrier with";
pub(super) const PUSH: &str = "push to the queue";
pub(super) const POP: &str = "pop from the queue";
pub(super) const MEASURE: &str = "measure the queue";

/// Result of an operation on the wire, apart from errors.
#[derive(Debug)]
pub(super) enum Ended {
    Answered(Option<Reply>),
    TimedOut(Duration),
}

/// A connection, and the reason for its failure, if it has failed.
#[derive(Debug)]
pub(super) struct Connected {
    link: Link,
    /// The error that ended the use of the connection.
    death: Option<String>,
}

impl Connected {
    /// Takes over a connection that has not been used yet.
    pub(super) fn new(link: Link) -> Self {
        Self { link, death: None }
    }

    /// Returns the numeric address of the server.
    pub(super) fn peer(&self) -> SocketAddr {
        self.link.peer()
    }

    /// Performs one operation. An error names the operation and the key.
    pub(super) fn perform(
        &mut self,
        operation: &'static str,
        key: &[u8],
        sent: StoreOperation,
        payload: &[u8],
        reply_timeout: Duration,
    ) -> Result<Ended, StoreError> {
        let started = Instant::now();
        let ended = self.link.perform(sent, payload, reply_timeout);
        self.conclude(operation, key, started, ended)
    }

    /// Sends the request of a wait.
    /// The caller waits until the socket is readable, and [`finish`](Self::finish) reads the
    /// answer.
    pub(super) fn begin(
        &mut self,
        operation: &'static str,
        key: &[u8],
        sent: StoreOperation,
        reply_timeout: Duration,
    ) -> Result<(), StoreError> {
        // Only a failure ends a wait before its answer.
        match self.link.begin(sent, &[], reply_timeout) {
            None => Ok(()),
            Some(ended) => self
                .conclude(operation, key, Instant::now(), ended)
                .map(drop),
        }
    }

    /// Ends the wait that was begun at `started`.
    pub(super) fn finish(
        &mut self,
        operation: &'static str,
        key: &[u8],
        started: Instant,
        reply_timeout: Duration,
    ) -> Result<Ended, StoreError> {
        let ended = self.link.finish(reply_timeout);
        self.conclude(operation, key, started, ended)
    }

    fn conclude(
        &mut self,
        operation: &'static str,
        key: &[u8],
        started: Instant,
        ended: Result<Option<Reply>, Broken>,
    ) -> Result<Ended, StoreError> {
        let Broken { failure, source } = match ended {
            Ok(reply) => return Ok(Ended::Answered(reply)),
            Err(broken) => broken,
        };
        let (peer, key, elapsed) = (self.link.peer().to_string(), text(key), started.elapsed());
        let error = match failure {
            OperationFailure::TimedOut => return Ok(Ended::TimedOut(elapsed)),
            OperationFailure::GivenUp => {
                let error = StoreError::Interrupted {
                    operation,
                    key,
                    elapsed,
                };
                if !self.link.is_alive() {
                    self.death = Some(error.to_string());
                }
                return Err(error);
            }
            OperationFailure::NoAnswer => StoreError::NoAnswer {
                peer,
                operation,
                key,
                elapsed,
            },
            OperationFailure::NoStore(StoreWireError::ReplyTooLong { declared, limit }) => {
                StoreError::ReplyTooLong {
                    peer,
                    operation,
                    key,
                    size: declared,
                    limit,
                }
            }
            OperationFailure::NoStore(error) => {
                self.corrupt(format!("{}: {error}", subject(operation, &key)))
            }
            OperationFailure::Closed => StoreError::Disconnected {
                peer,
                operation,
                key,
                elapsed,
                cause: self.probable_cause(operation),
                source,
            },
        };
        self.death.get_or_insert_with(|| error.to_string());
        Err(error)
    }

    /// Sends a request and returns its immediate answer.
    pub(super) fn ask(
        &mut self,
        operation: &'static str,
        key: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
        shape: Shape,
        reply_timeout: Duration,
    ) -> Result<Reply, StoreError> {
        let sent = StoreOperation {
            request: written(write),
            expects: Expects::Reply(shape),
        };
        match self.perform(operation, key, sent, &[], reply_timeout)? {
            Ended::Answered(Some(reply)) => Ok(reply),
            Ended::Answered(None) | Ended::TimedOut(_) => {
                Err(self.corrupt(format!("it sent no reply to the request to {operation}")))
            }
        }
    }

    /// Sends a request that is answered with a number.
    pub(super) fn ask_number(
        &mut self,
        operation: &'static str,
        key: &[u8],
        write: impl FnOnce(&mut Vec<u8>),
        reply_timeout: Duration,
    ) -> Result<i64, StoreError> {
        match self.ask(operation, key, write, Shape::Number, reply_timeout)? {
            Reply::Number(number) => Ok(number),
            other => Err(self.corrupt(format!(
                "it sent {other:?} as the reply to the request to {operation}"
            ))),
        }
    }

    /// Returns the error for a wait for keys that has timed out.
    pub(super) fn timed_out(&mut self, keys: &[Vec<u8>], elapsed: Duration) -> StoreError {
        StoreError::WaitTimeout {
            store: self.peer().to_string(),
            missing: self.missing(keys),
            keys: keys.iter().map(|key| text(key)).collect(),
            elapsed,
        }
    }

    /// Returns the keys that do not exist now, among the first [`MOST_EXAMINED`].
    /// The result is only for messages, so a key whose check failed counts as missing. A single key
    /// is not checked.
    fn missing(&mut self, keys: &[Vec<u8>]) -> Vec<String> {
        let [_, _, ..] = keys else {
            return keys.iter().map(|key| text(key)).collect();
        };
        let mut missing = Vec::new();
        for key in keys.iter().take(MOST_EXAMINED) {
            let check = |out: &mut Vec<u8>| request::check(out, &[key]);
            let there = match self.ask("check", key, check, Shape::Byte, LEAST_REPLY_TIMEOUT) {
                Ok(Reply::Byte(byte)) => byte == CheckReply::Ready as u8,
                _ => false,
            };
            if !there {
                missing.push(text(key));
            }
            if !self.link.is_alive() {
                break;
            }
        }
        missing
    }

    fn probable_cause(&self, operation: &'static str) -> String {
        if let Some(first) = &self.death {
            return first.clone();
        }
        let cause = match operation {
            ADD | BARRIER => {
                "the store's process has probably exited, or the value of the key is not a number"
            }
            PUSH | POP | MEASURE => {
                "the store's process has probably exited, or it is an older PyTorch server without \
                 queues"
            }
            _ => "the store's process has probably exited; otherwise, its log has the reason",
        };
        cause.to_owned()
    }

    /// Returns the error for invalid data from the server.
    pub(super) fn corrupt(&self, what: String) -> StoreError {
        StoreError::Corrupt {
            store: self.link.peer().to_string(),
            what,
        }
    }
}

/// Returns a key of the wire as its user wrote it.
pub(super) fn text(key: &[u8]) -> String {
    String::from_utf8_lossy(key.strip_prefix(b"/").unwrap_or(key)).into_owned()
}

/// Returns the request that `write` writes.
pub(super) fn written(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut request = Vec::new();
    write(&mut request);
    request
}
