//! A driver without I/O.
//!
//! It carries bytes between test code and a server machine.

use std::collections::BTreeMap;
use std::net::IpAddr;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::Now;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{CloseReason, Extension, Input, Output, ServerMachine};
use rdzv_store_proto::wire::request;

/// Number of bytes that the server's driver reads at a time.
const PIECE: usize = 32 << 10;

pub(crate) struct Harness {
    pub(crate) machine: ServerMachine,
    pub(crate) now: Now,
    /// Bytes that each connection has received and the test has not taken.
    pub(crate) received: BTreeMap<ConnId, Vec<u8>>,
    pub(crate) closed: BTreeMap<ConnId, CloseReason>,
    pub(crate) paused: BTreeMap<ConnId, bool>,
    /// Connections that read no replies.
    pub(crate) stalled: Vec<ConnId>,
    /// Connections of agents.
    pub(crate) joined: Vec<ConnId>,
    free: Vec<ConnId>,
    next: u32,
}

impl Harness {
    pub(crate) fn new(limits: Limits) -> Self {
        Self::around(ServerMachine::new(limits))
    }

    pub(crate) fn extended(limits: Limits, extension: Box<dyn Extension>) -> Self {
        Self::around(ServerMachine::new(limits).with_extension(extension))
    }

    fn around(machine: ServerMachine) -> Self {
        Self {
            machine,
            now: Now::default(),
            received: BTreeMap::new(),
            closed: BTreeMap::new(),
            paused: BTreeMap::new(),
            stalled: Vec::new(),
            joined: Vec::new(),
            free: Vec::new(),
            next: 0,
        }
    }

    pub(crate) fn connect(&mut self) -> ConnId {
        self.connect_from(None)
    }

    pub(crate) fn connect_from(&mut self, address: Option<IpAddr>) -> ConnId {
        let id = self.free.pop().unwrap_or(ConnId(self.next));
        self.next = self.next.max(id.0 + 1);
        self.handle(Input::Connected(id, address));
        id
    }

    /// Connects and validates.
    pub(crate) fn client(&mut self) -> ConnId {
        self.client_from(None)
    }

    /// Connects from an address and validates.
    pub(crate) fn client_from(&mut self, address: Option<IpAddr>) -> ConnId {
        let id = self.connect_from(address);
        let mut preamble = Vec::new();
        request::preamble(&mut preamble, 7);
        self.send(id, &preamble);
        assert_eq!(self.take(id), 7_u32.to_le_bytes());
        id
    }

    pub(crate) fn send(&mut self, id: ConnId, bytes: &[u8]) {
        for piece in bytes.chunks(PIECE) {
            self.handle(Input::Bytes(id, piece));
        }
    }

    /// Sends one request, written by `write`.
    pub(crate) fn ask(&mut self, id: ConnId, write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(&mut bytes);
        self.send(id, &bytes);
        self.take(id)
    }

    /// Takes everything that arrived on a connection since the last call.
    pub(crate) fn take(&mut self, id: ConnId) -> Vec<u8> {
        self.received.remove(&id).unwrap_or_default()
    }

    pub(crate) fn leave(&mut self, id: ConnId) {
        self.handle(Input::Closed(id));
        self.free.push(id);
    }

    pub(crate) fn handle(&mut self, input: Input<'_>) {
        self.machine.handle(self.now, input);
        let mut outputs = Vec::new();
        loop {
            outputs.extend(std::iter::from_fn(|| self.machine.poll_output()));
            if outputs.is_empty() {
                return;
            }
            match outputs.remove(0) {
                Output::Flush(id) => {
                    if !self.stalled.contains(&id) {
                        let count = self.collect(id);
                        self.machine.handle(self.now, Input::Sent(id, count));
                    }
                }
                Output::Close(id, reason) => {
                    self.collect(id);
                    self.closed.insert(id, *reason);
                    self.machine.handle(self.now, Input::Closed(id));
                }
                Output::PauseReading(id) => {
                    self.paused.insert(id, true);
                }
                Output::ResumeReading(id) => {
                    self.paused.insert(id, false);
                }
                Output::Yield => self.machine.handle(self.now, Input::Turn),
                Output::Joined(id, _) => self.joined.push(id),
            }
        }
    }

    fn collect(&mut self, id: ConnId) -> usize {
        let unsent: Vec<u8> = self.machine.unsent(id).flatten().copied().collect();
        self.received.entry(id).or_default().extend(&unsent);
        unsent.len()
    }
}
