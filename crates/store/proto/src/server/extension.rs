//! Interface for rdzv's requests, which keeps the store independent of them.
//!
//! ```text
//!   0x13..=0x7f ──► Extension::request ─┐
//!   closed, time passed ────────────────┼──► Reach: read and store keys, send to any connection
//!   a request for one of its keys ──────┘
//!         before: it may bring the value up to date      after: it sees the stored value
//! ```
//!
//! An extension owns the keys under one prefix. While it watches none of them, a request for a key
//! costs the same as without an extension.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use super::connection::{Connection, Stage};
use super::{CloseReason, Output, ServerMachine, Standing};
use crate::ops::Operations;
use crate::wire::fields::Body;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::Outbox;
use rdzv_core::time::{Mono, Now};

/// Requests that a server answers besides those of the store.
///
/// The owner of the server makes all calls, one at a time.
pub trait Extension: fmt::Debug + Send {
    /// Returns the prefix of the wire names of the extension's keys.
    fn prefix(&self) -> &[u8];

    /// Returns the nonce by which a client detects the extension, and the answer.
    ///
    /// The server echoes every other nonce except the one that detects an rdzv server
    /// ([`NATIVE_PROBE`](crate::wire::request::NATIVE_PROBE)). Without the extension, it echoes
    /// this nonce, too.
    fn probe(&self) -> (u32, u32);

    /// `true` if the server must show the extension requests for its keys now.
    ///
    /// The server calls this after each call that may change the extension.
    fn watches(&self) -> bool;

    /// Handles a request of the extension.
    fn request(
        &mut self,
        now: Now,
        from: ConnId,
        opcode: u8,
        payload: &[u8],
        reach: &mut Reach<'_>,
    );

    /// Notes that a connection is about to close: the peer's host does not answer.
    fn silent(&mut self, _now: Now, _id: ConnId, _reach: &mut Reach<'_>) {}

    /// Notes that a connection is about to close: the peer ended its stream.
    ///
    /// `peer` is the address of the peer, if it is known.
    fn end_of_stream(
        &mut self,
        _now: Now,
        _id: ConnId,
        _peer: Option<SocketAddr>,
        _reach: &mut Reach<'_>,
    ) {
    }

    /// Notes that a connection was closed.
    fn closed(&mut self, now: Now, id: ConnId, reach: &mut Reach<'_>);

    /// Notes that a request is about to read one of the keys, or to change it.
    ///
    /// `writes` is `false` for a read. A change may depend on a comparison.
    fn before(&mut self, now: Now, key: &[u8], writes: bool, reach: &mut Reach<'_>);

    /// Notes that a request that may have changed one of the keys was executed.
    fn after(&mut self, now: Now, key: &[u8], reach: &mut Reach<'_>);

    /// Notes that the server is ending and accepts no more peers.
    ///
    /// Connected peers have a short time left.
    fn ending(&mut self, _now: Now, _reach: &mut Reach<'_>) {}

    /// `true` if the server may end, after [`Extension::ending`].
    ///
    /// While peers are connected, the server waits for `true`, even after the time limit for
    /// clients. An extension that returns `false` has a [deadline](Extension::deadline) after which
    /// it returns `true`.
    fn has_ended(&self) -> bool {
        true
    }

    /// Handles a request from outside of the server for a report of the state.
    fn asked(&mut self, _now: Now) {}

    /// Returns the time at which the extension needs a call of [`Extension::tick`].
    fn deadline(&self) -> Option<Mono>;

    /// Handles the deadline of the extension.
    fn tick(&mut self, now: Now, reach: &mut Reach<'_>);
}

/// Access of an extension to the server.
#[derive(Debug)]
pub struct Reach<'a> {
    operations: &'a mut Operations,
    connections: &'a mut [Option<Connection>],
    joined: &'a mut Vec<(ConnId, Option<Duration>)>,
    outbox: &'a mut Outbox<Output>,
    closing: &'a mut Vec<(ConnId, CloseReason)>,
}

impl Reach<'_> {
    /// Returns the value of a key.
    pub fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.operations.keyspace().peek(key)
    }

    /// Stores a value and wakes the waiters of the key.
    pub fn store(&mut self, key: &[u8], value: &[u8]) {
        self.operations.set(key, Body::Inline(value));
    }

    /// Removes a key, if it exists.
    pub fn remove(&mut self, key: &[u8]) {
        self.operations.delete_key(key);
    }

    /// Sends bytes to a connection, after all bytes that were sent to it before.
    ///
    /// Does nothing if the connection was closed or is being closed.
    pub fn send(&mut self, to: ConnId, bytes: &[u8]) {
        let Some(Some(connection)) = self.connections.get_mut(to.0 as usize) else {
            return;
        };
        if connection.stage != Stage::Serving {
            return;
        }
        connection.outgoing.small().extend_from_slice(bytes);
        connection.account();
        if !connection.flushing {
            connection.flushing = true;
            self.outbox.push(Output::Flush(to));
        }
    }

    /// Marks the connection as that of an agent, which has no share limit.
    ///
    /// The connection ends if the peer's kernel acknowledges none of the sent bytes for `silence`.
    /// `None` means the server's default for agents.
    pub fn join(&mut self, id: ConnId, silence: Option<Duration>) {
        self.joined.push((id, silence));
    }

    /// Ends a connection once its output was sent or cannot be sent immediately.
    pub fn close(&mut self, id: ConnId, why: impl Into<String>) {
        self.closing.push((id, CloseReason::Extension(why.into())));
    }

    /// Ends a connection like [`Reach::close`], for a peer that did nothing wrong.
    pub fn dismiss(&mut self, id: ConnId, why: impl Into<String>) {
        self.closing.push((id, CloseReason::NotNeeded(why.into())));
    }
}

impl ServerMachine {
    /// Calls the extension, if there is one, and applies its effects.
    pub(super) fn extend(&mut self, call: impl FnOnce(&mut dyn Extension, Now, &mut Reach<'_>)) {
        let Some(extension) = &mut self.extension else {
            return;
        };
        let (mut closing, mut joined) = (Vec::new(), Vec::new());
        let mut reach = Reach {
            operations: &mut self.operations,
            connections: &mut self.connections,
            joined: &mut joined,
            outbox: &mut self.outbox,
            closing: &mut closing,
        };
        call(extension.as_mut(), self.now, &mut reach);
        self.watching = extension.watches();
        self.wake();
        for (id, silence) in joined {
            self.joined(id, silence);
        }
        for (id, reason) in closing {
            self.close(id, reason);
        }
    }

    /// Marks the connection as that of an agent.
    fn joined(&mut self, id: ConnId, silence: Option<Duration>) {
        if let Some(connection) = self.connection(id)
            && connection.account.standing() != Standing::Agent
        {
            connection.account.join();
            self.outbox.push(Output::Joined(id, silence));
        }
    }

    /// Shows the extension one of its keys before it is read or changed.
    pub(super) fn show_key(&mut self, key: &[u8], writes: bool) {
        if self.is_watched(key) {
            self.extend(|extension, now, reach| extension.before(now, key, writes, reach));
        }
    }

    /// Shows the extension one of its keys after a request that writes it.
    pub(super) fn show_stored(&mut self, key: &[u8]) {
        if self.is_watched(key) {
            self.spent += self.operations.keyspace().length(key);
            self.extend(|extension, now, reach| extension.after(now, key, reach));
        }
    }

    #[inline]
    fn is_watched(&self, key: &[u8]) -> bool {
        self.watching
            && self
                .extension
                .as_ref()
                .is_some_and(|extension| key.starts_with(extension.prefix()))
    }
}
