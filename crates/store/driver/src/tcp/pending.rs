//! Wait that blocks no thread.
//!
//! The caller polls the socket of the wait together with its other sockets.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rdzv_store_proto::client::{Expects, StoreOperation};
use rdzv_store_proto::wire::request;

use super::client::{TcpStore, wire_keys};
use super::connected::{Ended, written};
use crate::{Store, StoreError};

/// Name of the operation in errors.
const OPERATION: &str = "wait for";

/// Wait for keys on a separate connection. Dropping it cancels the wait.
#[derive(Debug)]
pub struct PendingWait {
    store: TcpStore,
    keys: Vec<Vec<u8>>,
    started: Instant,
    deadline: Option<Instant>,
}

impl TcpStore {
    /// Begins a wait for keys on a second connection to the same server.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`Store::try_clone`], or an error if the request cannot be sent.
    pub fn begin_wait(
        &self,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<PendingWait, StoreError> {
        PendingWait::on(self.reconnected()?, keys, timeout)
    }
}

impl PendingWait {
    /// Begins a wait on a connection that has no other users.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if the request cannot be sent.
    pub fn on(
        store: TcpStore,
        keys: &[&str],
        timeout: Option<Duration>,
    ) -> Result<Self, StoreError> {
        let keys = wire_keys(keys)?;
        let limit = timeout.unwrap_or_else(|| store.timeout());
        let sent = StoreOperation {
            request: written(|out| request::wait(out, &keys)),
            expects: Expects::Release { limit, then: None },
        };
        let started = Instant::now();
        let shown = keys.first().map_or(&b""[..], |key| key);
        let reply_timeout = store.reply_timeout();
        store
            .link
            .lock()
            .begin(OPERATION, shown, sent, reply_timeout)?;
        Ok(Self {
            deadline: started.checked_add(limit),
            store,
            keys,
            started,
        })
    }

    /// Returns the time at which the wait times out.
    /// Returns `None` if the clock cannot represent that time.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Finishes the wait and returns the connection.
    /// Call this method once the descriptor is readable or [`PendingWait::deadline`] has passed.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`Store::wait`].
    pub fn finish(self) -> Result<TcpStore, StoreError> {
        let shown = self.keys.first().map_or(&b""[..], |key| key);
        let reply_timeout = self.store.reply_timeout();
        let mut connected = self.store.link.lock();
        match connected.finish(OPERATION, shown, self.started, reply_timeout)? {
            Ended::Answered(_) => {
                drop(connected);
                Ok(self.store)
            }
            Ended::TimedOut(elapsed) => Err(connected.timed_out(&self.keys, elapsed)),
        }
    }
}

impl AsFd for PendingWait {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.store.socket.as_fd()
    }
}
