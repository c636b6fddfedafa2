//! Shortage of descriptors: connections without a request are closed.
//!
//! The driver reports the number of descriptors in use beyond those that every peer may use. The
//! server then closes connections that have made no request yet, the oldest first. `PING` does not
//! count as a request. Connections without validation come before the others. If there is no such
//! connection, a peer that is not an agent is refused with its first request. A peer whose first
//! request was admitted is never closed for this reason, because a PyTorch client never reconnects.

use std::collections::VecDeque;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::time::Mono;

use super::connection::Stage;
use super::shares::Standing;
use super::{CloseReason, ServerMachine};

/// Minimum time that a new connection has for its first request.
const FIRST_REQUEST: Duration = Duration::from_millis(200);

/// Minimum number of new entries after which the queue drops outdated entries.
const QUEUE_STEP: usize = 1024;

/// Connections that may be closed for lack of descriptors, and the shortage.
#[derive(Debug, Default)]
pub(super) struct Descriptors {
    /// Descriptors in use beyond those that every peer may use.
    beyond: usize,
    /// Validated connections with the time of their validation, in order.
    ///
    /// An entry is outdated when the connection has made a request or was closed.
    unused: VecDeque<(Mono, ConnId, u64)>,
    /// Length of the queue at which outdated entries are removed.
    look_at: usize,
    /// Number of connections closed for lack of descriptors.
    pub(super) closed: u64,
}

impl Descriptors {
    /// Counts the descriptor of a closed connection as free.
    pub(super) fn freed(&mut self) {
        self.beyond = self.beyond.saturating_sub(1);
    }
}

impl ServerMachine {
    /// Sets the number of descriptors in use beyond those that every peer may use.
    pub(super) fn descriptors_short(&mut self, beyond: usize) {
        self.descriptors.beyond = beyond;
        self.make_room_for_connections(beyond);
    }

    /// Adds a validated connection to the queue.
    pub(super) fn validated(&mut self, id: ConnId) {
        let Some(serial) = self.connection(id).map(|connection| connection.serial) else {
            return;
        };
        if self.descriptors.unused.len() >= self.descriptors.look_at {
            let mut unused = std::mem::take(&mut self.descriptors.unused);
            unused.retain(|(_, id, serial)| self.is_unused(*id, *serial));
            self.descriptors.look_at = 2 * unused.len() + QUEUE_STEP;
            self.descriptors.unused = unused;
        }
        let now = self.now.mono;
        self.descriptors.unused.push_back((now, id, serial));
    }

    /// Admits a request that is not a ping; an error closes the connection.
    #[inline]
    pub(super) fn admit_use(&mut self, id: ConnId) -> Result<(), CloseReason> {
        match self.connection(id) {
            Some(connection) if !connection.used => self.admit_first_use(id),
            _ => Ok(()),
        }
    }

    #[cold]
    fn admit_first_use(&mut self, id: ConnId) -> Result<(), CloseReason> {
        let Some(connection) = self.connection(id) else {
            return Ok(());
        };
        connection.used = true;
        let is_agent = connection.account.standing() == Standing::Agent;
        if self.descriptors.beyond == 0 || is_agent || self.make_room_for_connections(1) > 0 {
            return Ok(());
        }
        self.descriptors.closed += 1;
        Err(CloseReason::OutOfDescriptors)
    }

    /// Closes at most `most` connections without a request; returns the number.
    fn make_room_for_connections(&mut self, most: usize) -> usize {
        let mut closed = 0;
        while closed < most
            && let Some(id) = self.longest_unused()
        {
            self.close(id, CloseReason::OutOfDescriptors);
            closed += 1;
        }
        self.descriptors.closed += closed as u64;
        closed
    }

    /// Returns the connection that is to be closed next.
    fn longest_unused(&mut self) -> Option<ConnId> {
        self.forget_validated();
        let most = self.limits.validation_timeout.saturating_sub(FIRST_REQUEST);
        if let Some((deadline, id, _)) = self.unvalidated.front()
            && deadline.since(self.now.mono) <= most
        {
            return Some(*id);
        }
        while let Some((since, id, serial)) = self.descriptors.unused.front().copied() {
            if self.is_unused(id, serial) {
                return (self.now.mono.since(since) >= FIRST_REQUEST).then_some(id);
            }
            self.descriptors.unused.pop_front();
        }
        None
    }

    fn is_unused(&self, id: ConnId, serial: u64) -> bool {
        self.known(id).is_some_and(|connection| {
            connection.serial == serial && connection.stage == Stage::Serving && !connection.used
        })
    }
}
