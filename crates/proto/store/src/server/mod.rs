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
//! Every complete request in the piece is executed in place, so no connection gets more than one
//! piece's worth of work before the others are served.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the machine: inputs, outputs, connections coming and going, cutting the stream into requests, pausing |
//! | `connection.rs` | state of one connection: validation, unsent replies |
//! | `execute.rs` | one request: operation, wake-ups, reply |
//! | [`extension`] | requests of our own, for which the store has a seam and nothing more |
//! | [`close`] | reasons to close |

pub mod close;
mod connection;
mod execute;
pub mod extension;

use std::collections::VecDeque;

pub use close::CloseReason;
pub use connection::PREAMBLE_LENGTH;
use connection::{Connection, Outgoing, Stage, validate};
pub use extension::{Extension, Reach};

use super::limits::Limits;
use super::meter::Meter;
use super::ops::Operations;
use super::wire::request::decode;
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now};

/// With an extension, its requests may have at least this many bytes.
const EXTENSION_BYTES: usize = 8 << 10;

/// An event that a server handles.
#[derive(Debug)]
pub enum Input<'a> {
    /// A connection was accepted. Its id is the smallest that is free, or thereabouts: the machine
    /// keeps a table indexed by it.
    Connected(ConnId),
    /// Bytes came.
    Bytes(ConnId, &'a [u8]),
    /// Bytes were read straight into [`ServerMachine::space`].
    Landed(ConnId),
    /// This many bytes of [`ServerMachine::unsent`] were sent.
    Sent(ConnId, usize),
    /// The connection is gone: the peer left, or the driver has applied [`Output::Close`].
    Closed(ConnId),
    /// Until the next [`Input::Purge`], requests are executed however many replies are unsent:
    /// whatever was sent before the purge must have happened before it.
    PreparePurge,
    /// Remove every key and queue whose wire name starts with none of these.
    Purge(&'a [&'a [u8]]),
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
}

/// The server side of the c10d store protocol.
#[derive(Debug)]
pub struct ServerMachine {
    limits: Limits,
    operations: Operations,
    connections: Vec<Option<Connection>>,
    open: usize,
    /// Memory of all connections, as counted when each was last served.
    buffers: usize,
    /// Connections in order of their arrival, each with the time by which it must be validated.
    unvalidated: VecDeque<(Mono, ConnId, u64)>,
    serial: u64,
    purging: bool,
    requests: u64,
    outbox: Outbox<Output>,
    /// The time of the input that is being handled.
    now: Now,
    extension: Option<Box<dyn Extension>>,
    /// Whether the extension is shown requests for its keys.
    watching: bool,
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
            Input::Connected(id) => self.connected(now, id),
            Input::Closed(id) => self.closed(id),
            Input::PreparePurge => self.prepare_purge(),
            Input::Purge(prefixes) => {
                self.purging = false;
                self.operations.keep_prefixes(prefixes);
            }
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
        Self {
            limits,
            operations: Operations::new(Meter::default()),
            connections: Vec::new(),
            open: 0,
            buffers: 0,
            unvalidated: VecDeque::new(),
            serial: 0,
            purging: false,
            requests: 0,
            outbox: Outbox::default(),
            now: Now::default(),
            extension: None,
            watching: false,
        }
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
        let connection = self.connections.get(id.0 as usize);
        connection
            .and_then(Option::as_ref)
            .into_iter()
            .flat_map(|connection| connection.outgoing.slices())
    }

    /// The unsent replies of a connection if they lie in one piece, as they nearly always do.
    #[inline]
    pub fn unsent_in_one(&self, id: ConnId) -> Option<&[u8]> {
        let connection = self.connections.get(id.0 as usize)?.as_ref()?;
        connection.outgoing.in_one()
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
        }
    }

    /// Bytes of keys, values, waits and connection buffers.
    #[inline]
    fn memory(&self) -> usize {
        let table = self.connections.len() * size_of::<Option<Connection>>();
        let store = self.operations.keyspace().memory() + self.operations.waiters().memory();
        store + table + self.buffers
    }

    /// Checks that this many more bytes may be used.
    #[inline]
    fn make_room(&self, wanted: usize) -> Result<(), CloseReason> {
        let used = self.memory();
        if used.saturating_add(wanted) > self.limits.max_memory_bytes {
            return Err(CloseReason::OutOfMemory {
                wanted,
                used,
                limit: self.limits.max_memory_bytes,
            });
        }
        Ok(())
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

    fn connected(&mut self, now: Now, id: ConnId) {
        let index = id.0 as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.serial += 1;
        let full = self.open >= self.limits.max_connections;
        self.connections[index] = Some(Connection::new(self.serial));
        self.open += 1;
        if full {
            let limit = self.limits.max_connections;
            return self.close(id, CloseReason::TooManyConnections { limit });
        }
        let deadline = now.mono + self.limits.validation_timeout;
        self.unvalidated.push_back((deadline, id, self.serial));
    }

    /// Brings the sum of memory up to date, and checks it.
    #[inline]
    fn account(&mut self, id: ConnId) -> Result<(), CloseReason> {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return Ok(());
        };
        let memory = connection.memory();
        let grown = memory > connection.counted;
        self.buffers = self.buffers - connection.counted + memory;
        connection.counted = memory;
        if grown { self.make_room(0) } else { Ok(()) }
    }

    #[inline]
    fn flush(&mut self, id: ConnId) {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return;
        };
        if !connection.flushing && connection.outgoing.unsent() > 0 {
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
        connection.held = Vec::new();
        self.operations.disconnect(id);
        self.wake();
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
        self.buffers -= connection.counted;
        self.operations.disconnect(id);
        self.wake();
        self.forget_validated();
        self.extend(|extension, now, reach| extension.closed(now, id, reach));
    }

    fn tick(&mut self, now: Now) {
        self.close_unvalidated(now);
        let extension = self.extension.as_ref();
        if extension
            .and_then(|extension| extension.deadline())
            .is_some_and(|deadline| deadline <= now.mono)
        {
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
                    self.forget_validated();
                }
                Err(first) => {
                    let looks_like = close::looks_like(&first);
                    return self.close(id, CloseReason::NotAStoreClient { first, looks_like });
                }
            },
        }
        self.serve(id, input);
    }

    /// Executes complete requests, keeps the rest, and accounts for its memory.
    fn serve(&mut self, id: ConnId, input: &[u8]) {
        if let Err(reason) = self
            .serve_requests(id, input)
            .and_then(|()| self.account(id))
        {
            self.close(id, reason);
            return;
        }
        self.flush(id);
    }

    fn serve_requests(&mut self, id: ConnId, mut input: &[u8]) -> Result<(), CloseReason> {
        let limits = self.limits;
        let bound = match self.purging {
            true => usize::MAX,
            false => limits.max_unsent_bytes,
        };
        loop {
            let meter = self.operations.keyspace().meter();
            let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
                return Ok(());
            };
            if connection.outgoing.unsent() > bound {
                connection.held.extend_from_slice(input);
                if !connection.paused {
                    connection.paused = true;
                    self.outbox.push(Output::PauseReading(id));
                }
                return Ok(());
            }
            if connection.assembler.is_empty() {
                if input.is_empty() {
                    return Ok(());
                }
                if let Some((request, used)) = decode(input, &limits)? {
                    input = &input[used..];
                    self.execute(id, request, used)?;
                    continue;
                }
            }
            let Some(assembled) = connection.assembler.feed(&mut input, &limits, meter)? else {
                return Ok(());
            };
            self.execute(id, assembled.request(&limits), assembled.small_bytes())?;
        }
    }

    fn landed(&mut self, id: ConnId) {
        if let Some(connection) = self.connection(id)
            && connection.stage == Stage::Serving
        {
            let overshoot = connection.assembler.overshoot();
            self.serve(id, &overshoot);
        }
    }

    fn sent(&mut self, id: ConnId, count: usize) {
        let resume_below = self.limits.max_unsent_bytes / 2;
        let Some(connection) = self.connection(id) else {
            return;
        };
        connection.outgoing.advance(count);
        if connection.paused
            && connection.stage == Stage::Serving
            && connection.outgoing.unsent() <= resume_below
        {
            connection.paused = false;
            let held = std::mem::take(&mut connection.held);
            // A pause that the held requests bring on again must reach the driver after this.
            self.outbox.push(Output::ResumeReading(id));
            self.serve(id, &held);
        } else {
            // Sending only ever frees memory.
            let _ = self.account(id);
        }
    }

    fn prepare_purge(&mut self) {
        self.purging = true;
        for index in 0..self.connections.len() {
            let id = ConnId(index as u32);
            if let Some(connection) = self.connection(id)
                && connection.stage == Stage::Serving
                && !connection.held.is_empty()
            {
                let held = std::mem::take(&mut connection.held);
                self.serve(id, &held);
            }
        }
    }

    /// Drops the head of the queue of unvalidated connections as far as it is out of date.
    fn forget_validated(&mut self) {
        while let Some((_, id, serial)) = self.unvalidated.front() {
            let connection = self.connections.get(id.0 as usize);
            match connection.and_then(Option::as_ref) {
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
