//! The server machine: bytes of many connections in, replies out.
//!
//! ```text
//!                 VALIDATE right                bad request, limit, second VALIDATE
//!   Connected ──► validating ─────────► serving ────────────────────────► closing ──► Closed
//!                     │ wrong or late      ▲ │ unsent > bound
//!                     └──────► closing     │ ▼
//!                                        paused   (unsent < bound / 2: back)
//! ```
//!
//! The driver reads a bounded piece from a ready connection, hands it in, and applies the outputs.
//! The requests in the piece are executed in place, until they have taken the work of one turn
//! ([`TURN_WORK`]). The rest is held, and the connection is paused until it has its next turn:
//! after [`Output::Yield`], the driver serves every other connection that is ready, and hands in
//! [`Input::Turn`]. Thus no connection is served twice before every ready one was served once.
//! Requests about many keys are cut in steps (`lists.rs`), so no request takes longer than about
//! one turn.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the machine: inputs, outputs, connections coming and going, cutting the stream into requests, pausing |
//! | `connection.rs` | state of one connection: validation, unsent replies |
//! | `turns.rs` | turns of connections, one after another |
//! | `execute.rs` | one request: operation, wake-ups, reply |
//! | `lists.rs` | requests about many keys, in steps |
//! | `shares.rs` | how much a peer may hold |
//! | `descriptors.rs` | who makes room when descriptors are short |
//! | [`extension`] | requests of our own, for which the store has a seam and nothing more |
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
use rdzv_core::time::{Mono, Now};

/// With an extension, its requests may have at least this many bytes.
const EXTENSION_BYTES: usize = 8 << 10;

/// Work of one turn of a connection, in bytes read and written. A request and a key count as some
/// bytes more. It is some 50 µs.
pub const TURN_WORK: usize = 64 << 10;

/// Work for a request, whatever it is.
const REQUEST_WORK: usize = 64;

/// An event that a server handles.
#[derive(Debug)]
pub enum Input<'a> {
    /// A connection was accepted. Its id is the smallest that is free, or thereabouts: the machine
    /// keeps a table indexed by it. The address is that of the peer, if it is known.
    Connected(ConnId, Option<IpAddr>),
    /// Bytes came.
    Bytes(ConnId, &'a [u8]),
    /// Bytes were read straight into [`ServerMachine::space`].
    Landed(ConnId),
    /// This many bytes of [`ServerMachine::unsent`] were sent.
    Sent(ConnId, usize),
    /// The connection is gone: the peer left, or the driver has applied [`Output::Close`].
    Closed(ConnId),
    /// The connection is about to be gone because the peer's machine does not answer any more.
    Silent(ConnId),
    /// The connection is about to be gone because the peer, at this address if it is known, has ended its stream in order: it
    /// was not reset, and nothing of it is missing.
    EndOfStream(ConnId, Option<SocketAddr>),
    /// The driver refuses the peer, for this reason.
    Refused(ConnId, String),
    /// The peer has not proven that it belongs to the job: what is for agents is not for it
    /// ([`ServerMachine::with_agent_prefix`]).
    Restricted(ConnId),
    /// Every connection that was ready at [`Output::Yield`] has been served.
    Turn,
    /// Until the next [`Input::Purge`], requests are executed however many replies are unsent:
    /// whatever was sent before the purge must have happened before it.
    PreparePurge,
    /// Remove every key and queue whose wire name starts with none of these.
    Purge(&'a [&'a [u8]]),
    /// This many descriptors are in use beyond those that everybody may use; what is beyond is for agents.
    /// It holds until connections are closed or this is said again.
    DescriptorsShort(usize),
    /// The server is to end in order; nobody is accepted any more.
    Ending,
    /// Somebody outside asks how things stand.
    Asked,
    /// The deadline has come.
    Tick,
}

/// An action that a server asks its driver for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Send what [`ServerMachine::unsent`] has, and again whenever the connection takes more.
    Flush(ConnId),
    /// Send what can be sent without waiting, close, and report [`Input::Closed`].
    Close(ConnId, Box<CloseReason>),
    /// Do not read from the connection.
    PauseReading(ConnId),
    /// Read from it again.
    ResumeReading(ConnId),
    /// Connections wait for their next turn: serve all that are ready, and hand in [`Input::Turn`].
    Yield,
    /// The connection is that of an agent, which comes back if it is closed: find out soon whether
    /// its host is there: it is not if it acknowledges nothing for so long, where that is said.
    Joined(ConnId, Option<Duration>),
}

/// Figures of a server.
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
    /// The most memory that was in use after a turn.
    pub peak_memory_bytes: usize,
    /// Turns of connections since the start.
    pub turns: u64,
    /// The most work of one turn; see [`TURN_WORK`].
    pub longest_turn: usize,
    /// Connections that were closed for a reason.
    pub refused: u64,
    /// Those of them that were closed because descriptors were short.
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
    /// Connections that have their turn next, in order.
    ready: VecDeque<(ConnId, u64)>,
    /// A `Yield` was put out that is not answered yet.
    yielded: bool,
    /// Work of the turn so far.
    spent: usize,
    turns: u64,
    longest_turn: usize,
    peak_memory: usize,
    refused: u64,
    /// Connections in order of their arrival, each with the time by which it must be validated.
    unvalidated: VecDeque<(Mono, ConnId, u64)>,
    serial: u64,
    purging: bool,
    requests: u64,
    /// Those of them that were for the extension.
    extension_requests: u64,
    outbox: Outbox<Output>,
    /// The time of the input that is being handled.
    now: Now,
    extension: Option<Box<dyn Extension>>,
    /// Whether the extension is shown requests for its keys.
    watching: bool,
    /// The beginning of the keys of agents, if there are clients that are none.
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
        [validation, extension].into_iter().flatten().min()
    }
}

impl ServerMachine {
    /// An empty store without connections.
    pub fn new(limits: Limits) -> Self {
        let shares = Shares::default();
        Self {
            limits,
            operations: Operations::new(shares.meter().clone()),
            shares,
            ..Self::default()
        }
    }

    /// Keeps the keys that begin with this, and the requests of the extension, from connections that are
    /// [restricted](Input::Restricted).
    pub fn with_agent_prefix(mut self, prefix: Vec<u8>) -> Self {
        self.agent_prefix = Some(prefix);
        self
    }

    /// Adds what answers requests that the store itself does not know.
    pub fn with_extension(mut self, extension: Box<dyn Extension>) -> Self {
        self.limits.max_extension_bytes = self.limits.max_extension_bytes.max(EXTENSION_BYTES);
        self.watching = extension.watches();
        self.extension = Some(extension);
        self
    }

    /// The unsent replies of a connection, in order.
    pub fn unsent(&self, id: ConnId) -> impl Iterator<Item = &[u8]> {
        let connection = self.known(id).into_iter();
        connection.flat_map(|connection| connection.outgoing.slices())
    }

    /// The unsent replies of a connection if they lie in one piece, as they nearly always do.
    #[inline]
    pub fn unsent_in_one(&self, id: ConnId) -> Option<&[u8]> {
        self.known(id)?.outgoing.in_one()
    }

    /// Where the driver may read the rest of a large value straight into, if one is arriving: it
    /// reads into the spare capacity and reports [`Input::Landed`].
    #[inline]
    pub fn space(&mut self, id: ConnId) -> Option<&mut Vec<u8>> {
        let connection = self.connection(id)?;
        if connection.stage == Stage::Closing {
            return None;
        }
        connection.assembler.space()
    }

    /// Figures of this moment.
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

    /// Requests executed since the start: those of the store, and those of the extension.
    pub fn requests(&self) -> (u64, u64) {
        let own = self.requests - self.extension_requests;
        (own, self.extension_requests)
    }

    /// Whether the extension, if there is one, lets the server end. Asked after [`Input::Ending`].
    pub fn may_end(&self) -> bool {
        let extension = self.extension.as_ref();
        extension.is_none_or(|extension| extension.has_ended())
    }

    /// The addresses with the most connections, at most so many, and how many each has. Of an IPv6
    /// address, the first 64 bits are known.
    pub fn busiest_addresses(&self, most: usize) -> Vec<(Option<IpAddr>, usize)> {
        self.shares.busiest(most)
    }

    /// Bytes of keys, values, waits and connection buffers.
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

    /// The replies of a connection that is known to be there.
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

    /// Brings the account of a connection up to date, and checks its buffers. Replies may use the
    /// memory that is left to agents.
    #[inline]
    fn account(&mut self, id: ConnId) -> Result<(), CloseReason> {
        match self.connection(id).is_some_and(Connection::account) {
            true => self.make_room_for_reply(id, 0),
            false => Ok(()),
        }
    }

    /// Checks that a request of the extension, which may store something, may be executed. That of an
    /// agent always may.
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
        // Keys that the extension stores now are charged to this peer.
        self.operations.act_for(&connection.account.meter);
        self.disconnect(id);
        self.forget_validated();
        self.extend(|extension, now, reach| extension.closed(now, id, reach));
    }

    /// Takes out the waits of a connection that ends.
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
            match connection.paused {
                true => connection.held.extend_from_slice(&overshoot),
                false => self.serve(id, &overshoot),
            }
        }
    }

    fn sent(&mut self, id: ConnId, count: usize) {
        let resume_below = self.limits.max_unsent_bytes / 2;
        let Some(connection) = self.connection(id) else {
            return;
        };
        connection.outgoing.advance(count);
        // Sending only ever frees memory.
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

    /// Drops the head of the queue of unvalidated connections as far as it is out of date.
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
