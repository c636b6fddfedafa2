//! Virtual time, events, and acts of clients.
//!
//! | file | content |
//! |---|---|
//! | `driver.rs` | the driver of the machine |
//! | `end.rs` | invariants at the end |

mod driver;
mod end;

use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{Input, ServerMachine};
use rdzv_store_proto::wire::request;

use crate::client::Client;
use crate::ledger::Ledger;
use crate::link::Link;
use crate::scheduler::Scheduler;
use crate::trace::Trace;
use crate::{Result, broken};

/// Number of operations that clients start in one run.
const ACTS: usize = 600;

/// Totals of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Number of events.
    pub events: u64,
    /// Number of answers that clients checked.
    pub answers: u64,
    /// Number of operations on keys that were checked for their order.
    pub operations: u64,
    /// Number of broken connections.
    pub resets: u64,
    /// Number of times that the server stopped reading from a connection.
    pub pauses: u64,
    /// Maximum memory that the server used.
    pub peak_memory: usize,
    /// Virtual time that passed.
    pub elapsed: Duration,
}

/// Event at a time.
///
/// `generation` distinguishes a connection from its successors.
#[derive(Debug)]
enum Event {
    /// An idle client acts; a waiting client may cancel its wait.
    Turn(usize),
    AtServer(usize, u64, Vec<u8>),
    /// Bytes arrive at the client, which reads them immediately.
    AtClient(usize, u64, Vec<u8>),
    Reset {
        client: usize,
        generation: u64,
    },
}

/// The world of one seed.
#[derive(Debug)]
pub struct World {
    time: Scheduler<Event>,
    machine: ServerMachine,
    limits: Limits,
    clients: Vec<Client>,
    /// Connection of each client; its id is the client's number.
    links: Vec<Option<Link>>,
    ledger: Ledger,
    acts_left: usize,
    report: Report,
}

impl World {
    /// Creates a world in which nothing has happened yet.
    pub fn new(seed: u64, trace: Trace) -> Self {
        let mut time = Scheduler::new(seed, trace);
        let limits = Limits {
            max_unsent_bytes: time.random.usize(100..200_000),
            max_memory_bytes: 8 << 20,
            ..Limits::default()
        };
        let clients = time.random.usize(2..24);
        let mut world = Self {
            time,
            machine: ServerMachine::new(limits),
            limits,
            clients: (0..clients).map(Client::new).collect(),
            // One more for the probe at the end, which has no link.
            links: (0..=clients).map(|_| None).collect(),
            ledger: Ledger::default(),
            acts_left: ACTS,
            report: Report::default(),
        };
        for client in 0..clients {
            world.turn_soon(client);
        }
        world
    }

    /// Runs all events, and checks the result.
    pub fn run(mut self) -> Result<Report> {
        while let Some(event) = self.time.pop() {
            self.time.log("clients", || shown(&event));
            self.happen(event)?;
            let memory = self.machine.stats().memory_bytes;
            self.report.peak_memory = self.report.peak_memory.max(memory);
            // One admitted request may use a little more than it announced.
            if memory > self.limits.max_memory_bytes + (1 << 20) {
                return broken(format!("INV-S4: {memory} bytes of memory in use"));
            }
        }
        self.check_end()?;
        self.report.operations = self.ledger.linearizable()?;
        self.report.events = self.time.count;
        self.report.answers = self.ledger.answers;
        self.report.elapsed = Duration::from_nanos(self.time.now);
        Ok(self.report)
    }

    fn happen(&mut self, event: Event) -> Result {
        match event {
            Event::Turn(client) => self.turn(client),
            Event::AtServer(client, generation, bytes) => {
                let Some(link) = self.link(client, generation) else {
                    return Ok(());
                };
                if link.paused {
                    link.unread.push_back(bytes);
                } else {
                    self.deliver(client, &bytes);
                }
            }
            Event::AtClient(client, generation, bytes) => {
                let Some(link) = self.link(client, generation) else {
                    return Ok(());
                };
                link.read(bytes.len());
                let wants_room = link.wants_room;
                let now = self.time.now;
                let more = self.clients[client].receive(now, &bytes, &mut self.ledger)?;
                self.send(client, &more);
                if self.clients[client].is_idle() {
                    self.turn_soon(client);
                }
                if wants_room {
                    self.flush(client);
                    self.apply_outputs();
                }
            }
            Event::Reset { client, generation } => {
                if self.link(client, generation).is_some() {
                    self.report.resets += 1;
                    self.lose(client);
                    self.handle(Input::Closed(id(client)));
                }
            }
        }
        Ok(())
    }

    /// Runs a client's turn: connect, send a request, cancel a wait, or fail.
    fn turn(&mut self, client: usize) {
        let out_of_acts = self.acts_left == 0;
        if self.links[client].is_none() {
            if out_of_acts {
                return;
            }
            self.connect(client);
            return;
        }
        if self.clients[client].is_waiting() {
            // In the end no client cancels: every wait that can be answered must be answered.
            if !out_of_acts && self.time.random.u8(..) < 16 {
                let bytes = self.clients[client].cancel();
                self.send(client, &bytes);
            } else if !out_of_acts {
                self.turn_soon(client);
            }
            return;
        }
        if !self.clients[client].is_idle() || out_of_acts {
            return;
        }
        self.acts_left -= 1;
        let now = self.time.now;
        let bytes = self.clients[client].act(now, &mut self.time.random);
        self.send(client, &bytes);
        self.turn_soon(client);
        if self.time.random.u8(..) < 8 {
            let link = self.links[client].as_ref();
            let generation = link.map_or(0, |link| link.generation);
            let soon = self.time.now + self.time.random.u64(0..5_000_000);
            self.time.at(soon, Event::Reset { client, generation });
        }
    }

    fn connect(&mut self, client: usize) {
        let generation = self.time.unique();
        self.links[client] = Some(Link::new(generation, &mut self.time.random));
        self.handle(Input::Connected(id(client), None));
        let bytes = self.clients[client].join();
        self.send(client, &bytes);
        // Some connections send the preamble twice, and the server closes them.
        if self.time.random.u8(..) < 4 {
            let mut wrong = Vec::new();
            request::preamble(&mut wrong, 1);
            self.send(client, &wrong);
        }
    }

    fn send(&mut self, client: usize, bytes: &[u8]) {
        let (now, random) = (self.time.now, &mut self.time.random);
        let Some(link) = &mut self.links[client] else {
            return;
        };
        let generation = link.generation;
        for (time, bytes) in link.to_server(now, bytes, random) {
            self.time
                .at(time, Event::AtServer(client, generation, bytes));
        }
    }

    fn turn_soon(&mut self, client: usize) {
        let soon = self.time.now + self.time.random.u64(1_000..20_000_000);
        self.time.at(soon, Event::Turn(client));
    }

    fn link(&mut self, client: usize, generation: u64) -> Option<&mut Link> {
        let link = self.links[client].as_mut();
        link.filter(|link| link.generation == generation)
    }
}

fn id(client: usize) -> ConnId {
    ConnId(client as u32)
}

fn shown(event: &Event) -> String {
    let bytes = |bytes: &[u8]| {
        let start = &bytes[..bytes.len().min(40)];
        format!("{} bytes {}", bytes.len(), start.escape_ascii())
    };
    match event {
        Event::AtServer(client, _, sent) => format!("{client} -> server  {}", bytes(sent)),
        Event::AtClient(client, _, sent) => format!("server -> {client}  {}", bytes(sent)),
        other => format!("{other:?}"),
    }
}
