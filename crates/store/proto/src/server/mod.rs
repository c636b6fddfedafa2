//! The server machine: bytes of many connections in, replies out.
//!
//! ```text
//!                 VALIDATE right                bad request, limit, second VALIDATE
//!   Connected ──► validating ─────────► serving ────────────────────────► closing ──► Closed
//!                     │ wrong or late      ▲ │ unsent > bound
//!                     └──────► closing     │ ▼
//!                                        paused   (unsent ≤ bound / 2: back)
//! ```
//!
//! The driver reads a bounded piece from a ready connection, passes it to the machine, and applies
//! the outputs. The machine executes the requests in the piece immediately, until they have used
//! the work of one turn ([`TURN_WORK`]). The rest is held, and the connection is paused until its
//! next turn. After [`Output::Yield`], the driver serves the other ready connections, and then
//! passes [`Input::Turn`]. A connection that has used its turn therefore waits for the others; the
//! driver limits this wait. Requests about many keys are split into steps (`lists.rs`), each of
//! which takes at most about one turn.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | the machine: inputs, outputs, connections, streams into requests, pausing |
//! | `connection.rs` | state of one connection: validation, unsent replies |
//! | `turns.rs` | turns of connections, in order |
//! | `execute.rs` | one request: operation, wake-ups, reply |
//! | `lists.rs` | requests about many keys, in steps |
//! | `shares.rs` | the limits of what a peer may hold |
//! | `descriptors.rs` | the connections that make room when descriptors are scarce |
//! | [`extension`] | the interface for requests of rdzv; the store itself does not know them |
//! | [`close`] | reasons to close |

pub mod close;
mod connection;
mod descriptors;
mod execute;
pub mod extension;
mod lists;
mod shares;
mod turns;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use close::CloseReason;
pub use connection::PREAMBLE_LENGTH;
use connection::{Connection, Outgoing, Stage, validate};
use descriptors::Descriptors;
pub use extension::{Extension, Reach};
use lists::{KEY_WORK, Unfinished};
use shares::{Shares, Standing};

use super::limits::Limits;
use super::ops::Operations;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now, earliest};

/// Minimum size limit of an extension's requests, in bytes.
const EXTENSION_BYTES: usize = 8 << 10;

/// Work of one turn of a connection, in bytes read and written.
/// A request and a key each count as a fixed number of bytes more. One turn takes about 50 µs.
pub const TURN_WORK: usize = 64 << 10;

/// Work for a request of any kind.
const REQUEST_WORK: usize = 64;

/// An event that a server handles.
#[derive(Debug)]
pub enum Input<'a> {
    /// A connection was accepted.
    /// Its id should be close to the smallest free id, because the machine keeps a table indexed by
    /// ids. The address is that of the peer, if it is known.
    Connected(ConnId, Option<IpAddr>),
    /// Bytes arrived.
    Bytes(ConnId, &'a [u8]),
    /// Bytes were read directly into [`ServerMachine::space`].
    Landed(ConnId),
    /// This many bytes of [`ServerMachine::unsent`] were sent.
    Sent(ConnId, usize),
    /// The connection has ended.
    /// The peer left, or the driver has applied [`Output::Close`].
    Closed(ConnId),
    /// The connection is about to end because the peer's host no longer answers.
    Silent(ConnId),
    /// The connection is about to end because the peer has ended its stream.
    /// The stream was not reset, and no byte of it is missing. The address is that of the peer, if
    /// it is known.
    EndOfStream(ConnId, Option<SocketAddr>),
    /// The driver refuses the peer, for this reason.
    Refused(ConnId, String),
    /// The peer has not proven that it belongs to the job.
    /// It may not use the keys and requests of agents ([`ServerMachine::with_agent_prefix`]).
    Restricted(ConnId),
    /// The driver has served the other ready connections, or no longer waits.
    Turn,
    /// The driver is about to purge.
    /// Until the next [`Input::Purge`], the server pauses no connection, so every request that the
    /// driver passes is executed before the purge. If the unsent replies without large values
    /// exceed [`Limits::max_unsent_bytes`], the server closes the connection instead.
    PreparePurge,
    /// Remove every key and queue whose wire name starts with none of these.
    Purge(&'a [&'a [u8]]),
    /// This many descriptors are in use beyond those that every peer may use.
    /// The rest is for agents. The number is valid until connections are closed or this input is
    /// repeated.
    DescriptorsShort(usize),
    /// The server begins to end; it accepts no more peers.
    Ending,
    /// A caller outside of the server requests a report of the state.
    Asked,
    /// The machine's deadline has passed.
    Tick,
}

/// An action that a server requests from its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send [`ServerMachine::unsent`].
    /// Repeat this whenever the connection accepts more.
    Flush(ConnId),
    /// Send what can be sent without waiting, close, and report [`Input::Closed`].
    Close(ConnId, Box<CloseReason>),
    /// Stop reading from the connection.
    PauseReading(ConnId),
    /// Resume reading from the connection.
    ResumeReading(ConnId),
    /// Serve all ready connections, and then pass [`Input::Turn`].
    /// Connections wait for their next turn, or cancelled waits for their removal.
    Yield,
    /// Detect soon if the host of this connection is lost.
    /// The connection is that of an agent, which reconnects if the connection is closed. Its host
    /// counts as lost if it acknowledges no sent byte for this duration. `None` means the server's
    /// default.
    Joined(ConnId, Option<Duration>),
}

/// Statistics of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ServerStats {
    /// Connections open.
    pub connections: usize,
    /// Keys held.
    pub keys: usize,
    /// Queues that are not empty.
    pub queues: usize,
    /// Waits and barriers pending.
    pub waits: usize,
    /// Bytes of keys, values, waits and connection buffers.
    pub memory_bytes: usize,
    /// Requests executed since the start.
    pub requests: u64,
    /// Largest memory that was in use at the end of a turn.
    pub peak_memory_bytes: usize,
    /// Turns of connections since the start.
    pub turns: u64,
    /// Largest work of one turn; see [`TURN_WORK`].
    pub longest_turn: usize,
    /// Connections that the server closed for a [`CloseReason`].
    pub refused: u64,
    /// Connections that were closed because descriptors were scarce.
    /// They are included in `refused`.
    pub refused_for_descriptors: u64,
}

/// The server side of the c10d store protocol.
#[derive(Debug, Default)]
pub struct ServerMachine {
    limits: Limits,
    operations: Operations,
    connections: Vec<Option<Connection>>,
    open: usize,
    shares: Shares,
    descriptors: Descriptors,
    /// Connections that wait for their next turn, in order.
    ready: VecDeque<(ConnId, u64)>,
    /// `true` if a `Yield` is not answered yet.
    yielded: bool,
    /// Work of the current turn until now.
    spent: usize,
    turns: u64,
    longest_turn: usize,
    peak_memory: usize,
    refused: u64,
    /// Connections in order of arrival, each with its validation deadline.
    unvalidated: VecDeque<(Mono, ConnId, u64)>,
    serial: u64,
    purging: bool,
    requests: u64,
    /// Number of requests of the extension; included in `requests`.
    extension_requests: u64,
    outbox: Outbox<Output>,
    /// Time of the current input.
    now: Now,
    extension: Option<Box<dyn Extension>>,
    /// `true` if the extension is shown requests for its keys.
    watching: bool,
    /// Wire prefix of the keys of agents, if some clients are not agents.
    agent_prefix: Option<Vec<u8>>,
}

impl Machine for ServerMachine {
    type Input<'a> = Input<'a>;
    type Output = Output;

    #[inline]
    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        self.now = now;
        match input {
            Input::Bytes(id, bytes) => self.receive(id, bytes),
            Input::Sent(id, count) => self.sent(id, count),
            Input::Landed(id) => self.landed(id),
            Input::Connected(id, address) => self.connected(now, id, address),
            Input::Refused(id, why) => self.close(id, CloseReason::Refused(why)),
            Input::Restricted(id) => {
                if let Some(connection) = self.connection(id) {
                    connection.restricted = true;
                }
            }
            Input::Turn => self.next_turns(),
            Input::Silent(id) => {
                self.extend(|extension, now, reach| extension.silent(now, id, reach));
            }
            Input::EndOfStream(id, peer) => {
                self.extend(|extension, now, reach| extension.end_of_stream(now, id, peer, reach));
            }
            Input::Closed(id) => self.closed(id),
            Input::PreparePurge => self.prepare_purge(),
            Input::Purge(prefixes) => {
                self.purging = false;
                self.operations.keep_prefixes(prefixes);
            }
            Input::DescriptorsShort(beyond) => self.descriptors_short(beyond),
            Input::Ending => self.extend(|extension, now, reach| extension.ending(now, reach)),
            Input::Asked => self.extend(|extension, now, _| extension.asked(now)),
            Input::Tick => self.tick(now),
        }
    }

    #[inline]
    fn poll_output(&mut self) -> Option<Output> {
        let output = self.outbox.pop();
        if let Some(Output::Flush(id)) = output
            && let Some(connection) = self.connection(id)
        {
            connection.flushing = false;
        }
        output
    }

    fn deadline(&self) -> Option<Mono> {
        let validation = self.unvalidated.front().map(|(deadline, _, _)| *deadline);
        let extension = self.extension.as_ref();
        let extension = extension.and_then(|extension| extension.deadline());
        earliest([validation, extension])
    }
}

impl ServerMachine {
    /// Creates an empty store without connections.
    pub fn new(limits: Limits) -> Self {
        let shares = Shares::default();
        Self {
            limits,
            operations: Operations::new(shares.meter().clone()),
            shares,
            ..Self::default()
        }
    }

    /// Reserves keys with this prefix, and the extension's requests, for agents.
    /// Connections that are [restricted](Input::Restricted) cannot use them.
    pub fn with_agent_prefix(mut self, prefix: Vec<u8>) -> Self {
        self.agent_prefix = Some(prefix);
        self
    }

    /// Adds an extension, which answers requests that the store does not know.
    pub fn with_extension(mut self, extension: Box<dyn Extension>) -> Self {
        self.limits.max_extension_bytes = self.limits.max_extension_bytes.max(EXTENSION_BYTES);
        self.watching = extension.watches();
        self.extension = Some(extension);
        self
    }

    /// Returns the unsent replies of a connection, in order.
    pub fn unsent(&self, id: ConnId) -> impl Iterator<Item = &[u8]> {
        let connection = self.known(id).into_iter();
        connection.flat_map(|connection| connection.outgoing.slices())
    }

    /// Returns the unsent replies of a connection if none is a large value.
    /// That is the usual case.
    #[inline]
    pub fn unsent_in_one(&self, id: ConnId) -> Option<&[u8]> {
        self.known(id)?.outgoing.in_one()
    }

    /// Returns the buffer into which the driver may read a large value directly.
    /// `None` if no large value is arriving. The driver reads into the spare capacity and then
    /// passes [`Input::Landed`].
    #[inline]
    pub fn space(&mut self, id: ConnId) -> Option<&mut Vec<u8>> {
        let connection = self.connection(id)?;
        if connection.stage == Stage::Closing {
            return None;
        }
        connection.assembler.space()
    }

    /// Returns the current statistics.
    pub fn stats(&self) -> ServerStats {
        ServerStats {
            connections: self.open,
            keys: self.operations.keyspace().len(),
            queues: self.operations.keyspace().queue_count(),
            waits: self.operations.waiters().len(),
            memory_bytes: self.memory(),
            requests: self.requests,
            peak_memory_bytes: self.peak_memory.max(self.memory()),
            turns: self.turns,
            longest_turn: self.longest_turn,
            refused: self.refused,
            refused_for_descriptors: self.descriptors.closed,
        }
    }

    /// Returns the numbers of executed requests.
    /// The first counts requests of the store, the second those of the extension.
    pub fn requests(&self) -> (u64, u64) {
        let own = self.requests - self.extension_requests;
        (own, self.extension_requests)
    }

    /// `true` if the extension lets the server end; used after [`Input::Ending`].
    pub fn may_end(&self) -> bool {
        let extension = self.extension.as_ref();
        extension.is_none_or(|extension| extension.has_ended())
    }

    /// Returns up to `most` addresses with the most connections.
    /// Each address is paired with its number of connections. Only the first 64 bits of an IPv6
    /// address are known.
    pub fn busiest_addresses(&self, most: usize) -> Vec<(Option<IpAddr>, usize)> {
        self.shares.busiest(most)
    }

    /// Returns the bytes of keys, values, waits and connection buffers.
    #[inline]
    fn memory(&self) -> usize {
        let table = self.connections.len() * size_of::<Option<Connection>>();
        self.operations.keyspace().memory() + table
    }

    /// Checks that the peer of a connection may hold this many more bytes and keys.
    #[inline]
    fn admit_more(&self, id: ConnId, bytes: usize, keys: usize) -> Result<(), CloseReason> {
        let Some(connection) = self.known(id) else {
            return Ok(());
        };
        let (account, memory) = (&connection.account, self.memory());
        self.shares
            .admit(account, bytes, keys, memory, &self.limits)
    }

    /// Checks that the peer of a connection may hold this many more bytes.
    #[inline]
    fn make_room(&self, id: ConnId, bytes: usize) -> Result<(), CloseReason> {
        self.admit_more(id, bytes, 0)
    }

    #[inline]
    fn known(&self, id: ConnId) -> Option<&Connection> {
        self.connections.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    fn connection(&mut self, id: ConnId) -> Option<&mut Connection> {
        self.connections.get_mut(id.0 as usize)?.as_mut()
    }

    #[inline]
    fn outgoing(&mut self, id: ConnId) -> &mut Outgoing {
        &mut self
            .connection(id)
            .expect("a request is executed only for a connection that exists")
            .outgoing
    }

    #[inline]
    fn small(&mut self, id: ConnId) -> &mut Vec<u8> {
        self.outgoing(id).small()
    }

    fn connected(&mut self, now: Now, id: ConnId, address: Option<IpAddr>) {
        let index = id.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.serial += 1;
        let full = self.open >= self.limits.max_connections;
        let (account, allowed) = self.shares.open(address, &self.limits);
        self.connections[index] = Some(Connection::new(self.serial, account));
        self.open += 1;
        if full {
            let limit = self.limits.max_connections;
            return self.close(id, CloseReason::TooManyConnections { limit });
        }
        if let Err(reason) = allowed {
            return self.close(id, reason);
        }
        let deadline = now.mono + self.limits.validation_timeout;
        self.unvalidated.push_back((deadline, id, self.serial));
    }

    /// Updates the account of a connection, and checks its buffers.
    /// Replies may use the memory that is reserved for agents.
    #[inline]
    fn account(&mut self, id: ConnId) -> Result<(), CloseReason> {
        if self.connection(id).is_some_and(Connection::account) {
            self.make_room_for_reply(id, 0)
        } else {
            Ok(())
        }
    }

    /// Checks that a request of the extension may be executed.
    /// The request may store a value. A request of an agent is always executed.
    fn make_room_for_request(&self, id: ConnId, bytes: usize) -> Result<(), CloseReason> {
        match self.known(id) {
            Some(connection) if connection.account.standing() != Standing::Agent => {
                self.make_room_for_reply(id, bytes)
            }
            _ => Ok(()),
        }
    }

    /// Checks that the buffers of a connection may have this many more bytes.
    fn make_room_for_reply(&self, id: ConnId, bytes: usize) -> Result<(), CloseReason> {
        let Some(connection) = self.known(id) else {
            return Ok(());
        };
        let (account, memory) = (&connection.account, self.memory());
        self.shares
            .admit_reply(account, bytes, memory, &self.limits)
    }

    #[inline]
    fn flush(&mut self, id: ConnId) {
        if let Some(connection) = self.connection(id)
            && !connection.flushing
            && connection.outgoing.unsent() > 0
        {
            connection.flushing = true;
            self.outbox.push(Output::Flush(id));
        }
    }

    /// Begins to close a connection: its input is ignored from now on.
    fn close(&mut self, id: ConnId, reason: CloseReason) {
        let Some(connection) = self.connection(id) else {
            return;
        };
        if connection.stage == Stage::Closing {
            return;
        }
        connection.stage = Stage::Closing;
        connection.assembler = Default::default();
        connection.unfinished = None;
        connection.held = Vec::new();
        self.refused += 1;
        self.disconnect(id);
        // Only replies are left, whose memory is freed when they are sent or dropped.
        let _ = self.account(id);
        self.outbox.push(Output::Close(id, Box::new(reason)));
    }

    fn closed(&mut self, id: ConnId) {
        let slot = self.connections.get_mut(id.0 as usize);
        let Some(connection) = slot.and_then(Option::take) else {
            return;
        };
        self.open -= 1;
        self.descriptors.freed();
        connection.account.meter.shrink(connection.counted);
        self.shares.close(&connection.account);
        // Keys that the extension stores now count for this peer.
        self.operations.act_for(&connection.account.meter);
        self.disconnect(id);
        self.forget_validated();
        self.extend(|extension, now, reach| extension.closed(now, id, reach));
    }

    /// Removes the waits of a connection that ends.
    fn disconnect(&mut self, id: ConnId) {
        self.operations.disconnect(id);
        self.wake();
        if self.operations.waiters().has_cancelled() {
            self.want_turn();
        }
    }

    fn tick(&mut self, now: Now) {
        self.close_unvalidated(now);
        let extension = self.extension.as_ref();
        if extension
            .and_then(|extension| extension.deadline())
            .is_some_and(|deadline| deadline <= now.mono)
        {
            self.operations.act_for(self.shares.meter());
            self.extend(|extension, now, reach| extension.tick(now, reach));
        }
    }

    fn receive(&mut self, id: ConnId, mut input: &[u8]) {
        let purging = self.purging;
        let Some(connection) = self.connection(id) else {
            return;
        };
        match connection.stage {
            Stage::Serving if !connection.paused || purging => {}
            Stage::Serving => return connection.held.extend_from_slice(input),
            Stage::Closing => return,
            Stage::Validating(matched) => match validate(matched, input) {
                Ok((used, stage)) => {
                    connection.stage = stage;
                    input = &input[used..];
                    if stage == Stage::Serving {
                        self.forget_validated();
                        self.validated(id);
                    }
                }
                Err(first) => {
                    let looks_like = close::looks_like(&first);
                    return self.close(id, CloseReason::NotAStoreClient { first, looks_like });
                }
            },
        }
        self.serve(id, input);
    }

    fn landed(&mut self, id: ConnId) {
        if let Some(connection) = self.connection(id)
            && connection.stage == Stage::Serving
        {
            let overshoot = connection.assembler.overshoot();
            if connection.paused {
                connection.held.extend_from_slice(&overshoot);
            } else {
                self.serve(id, &overshoot);
            }
        }
    }

    fn sent(&mut self, id: ConnId, count: usize) {
        let resume_below = self.limits.max_unsent_bytes / 2;
        let Some(connection) = self.connection(id) else {
            return;
        };
        connection.outgoing.advance(count);
        // Sending only frees memory.
        connection.account();
        if connection.paused
            && connection.stage == Stage::Serving
            && connection.outgoing.unsent() <= resume_below
        {
            self.queue(id);
        }
    }

    fn prepare_purge(&mut self) {
        self.purging = true;
        for index in 0..self.connections.len() {
            let id = ConnId(index as u32);
            if let Some(connection) = self.connection(id)
                && connection.stage == Stage::Serving
                && (!connection.held.is_empty() || connection.unfinished.is_some())
            {
                let held = std::mem::take(&mut connection.held);
                self.serve(id, &held);
            }
        }
    }

    /// Drops outdated entries at the head of the queue of unvalidated connections.
    fn forget_validated(&mut self) {
        while let Some((_, id, serial)) = self.unvalidated.front() {
            match self.known(*id) {
                Some(connection)
                    if connection.serial == *serial
                        && matches!(connection.stage, Stage::Validating(_)) =>
                {
                    return;
                }
                _ => self.unvalidated.pop_front(),
            };
        }
    }

    fn close_unvalidated(&mut self, now: Now) {
        self.forget_validated();
        while let Some(&(deadline, id, _)) = self.unvalidated.front()
            && deadline <= now.mono
        {
            self.close(id, CloseReason::Silent(self.limits.validation_timeout));
            self.forget_validated();
        }
    }
}
