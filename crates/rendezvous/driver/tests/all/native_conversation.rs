//! Conversation of agents with a rendezvous store server, byte for byte.
//!
//! It has a probe, a join, a round that forms, a change, a failure, a leave, a loss, and the end of
//! the run.
//!
//! After the release of 0.1.0, `golden/native_conversation.txt` must not change.

#![allow(clippy::unwrap_used, reason = "a test ends at what it did not expect")]

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous::dynamic::native::extension;
use rdzv_rendezvous_proto::coordinator::wire::PROBE;
use rdzv_rendezvous_proto::native_client::{
    FormedRound, Input, NativeClient, NativeFailure, Output, RoundChange,
};
use rdzv_rendezvous_proto::{NodeDesc, Settings};
use rdzv_store_proto::limits::Limits;
use rdzv_store_proto::server::{self, ServerMachine};
use rdzv_store_proto::wire::request;

const RECORDED: &str = include_str!("../golden/native_conversation.txt");

/// Store server, its agents, and all bytes between them in order.
struct Conversation {
    now: Now,
    server: ServerMachine,
    clients: Vec<NativeClient>,
    text: String,
    /// Bytes from the server that their agent has not received yet.
    in_flight: VecDeque<(u32, Vec<u8>)>,
}

impl Conversation {
    fn new(server: ServerMachine) -> Self {
        Self {
            now: Now {
                mono: Mono::ZERO,
                wall: Wall::from_unix_micros(1_700_000_000_000_000),
            },
            server,
            clients: Vec::new(),
            text: String::new(),
            in_flight: VecDeque::new(),
        }
    }

    fn note(&mut self, what: &str) {
        writeln!(self.text, "# {what}").unwrap();
    }

    fn note_bytes(&mut self, connection: u32, way: char, bytes: &[u8]) {
        write!(self.text, "{connection}{way} ").unwrap();
        for byte in bytes {
            write!(self.text, "{byte:02x}").unwrap();
        }
        self.text.push('\n');
    }

    /// Opens a connection and sends the probe with this nonce.
    fn connect(&mut self, connection: u32, nonce: u32) {
        let id = ConnId(connection);
        let connected = server::Input::Connected(id, None);
        self.server.handle(self.now, connected);
        let mut preamble = Vec::new();
        request::preamble(&mut preamble, nonce);
        self.say(connection, &preamble);
    }

    /// Adds an agent with a separate connection.
    fn agent(&mut self, settings: Settings) -> u32 {
        self.agent_named(self.clients.len() as u32, settings)
    }

    fn agent_named(&mut self, name: u32, settings: Settings) -> u32 {
        let number = self.clients.len() as u32;
        self.connect(number, PROBE);
        // The driver of the agent receives the answer to the probe.
        self.in_flight.clear();
        let node = NodeDesc::new(format!("node-{name}"), 100 + i64::from(name));
        let instance = 0x1111_1111_1111_1111 * u64::from(number + 1);
        let client = NativeClient::new(self.now, instance, "run-1", node, settings);
        self.clients.push(client);
        number
    }

    /// Sends bytes of a connection to the server, and collects all its answers.
    fn say(&mut self, connection: u32, bytes: &[u8]) {
        self.note_bytes(connection, '>', bytes);
        let bytes = server::Input::Bytes(ConnId(connection), bytes);
        self.server.handle(self.now, bytes);
        self.serve();
    }

    /// Collects the bytes that the server sends.
    fn serve(&mut self) {
        let mut sent = Vec::new();
        while let Some(output) = self.server.poll_output() {
            match output {
                server::Output::Flush(id) => {
                    let bytes = self.server.unsent(id).collect::<Vec<_>>().concat();
                    self.note_bytes(id.0, '<', &bytes);
                    sent.push((id.0, bytes));
                }
                server::Output::Close(id, why) => self.note(&format!("closes {}: {why}", id.0)),
                server::Output::Joined(..) => {}
                other => panic!("{other:?}"),
            }
        }
        for (connection, bytes) in &sent {
            let sent = server::Input::Sent(ConnId(*connection), bytes.len());
            self.server.handle(self.now, sent);
            assert_eq!(self.server.poll_output(), None);
        }
        self.in_flight.extend(sent);
    }

    /// Passes an input to the server, and delivers the results.
    fn serve_input(&mut self, input: server::Input<'_>) {
        self.server.handle(self.now, input);
        self.serve();
        self.deliver();
    }

    /// Passes an input to an agent, and delivers the results.
    fn handle(&mut self, number: u32, input: Input<'_>) {
        self.step(number, input);
        self.deliver();
    }

    fn deliver(&mut self) {
        while let Some((number, bytes)) = self.in_flight.pop_front() {
            if (number as usize) < self.clients.len() {
                self.step(number, Input::Bytes(&bytes));
            }
        }
    }

    fn step(&mut self, number: u32, input: Input<'_>) {
        let client = &mut self.clients[number as usize];
        client.handle(self.now, input);
        let outputs: Vec<_> = std::iter::from_fn(|| client.poll_output()).collect();
        for output in outputs {
            match output {
                Output::Send(bytes) => self.say(number, &bytes),
                Output::Lead { round } => {
                    let (addr, port) = ("10.0.0.1", 29_500);
                    self.step(number, Input::Publish { round, addr, port });
                }
                other => self.note(&format!("{number} {}", outcome(&other))),
            }
        }
    }

    fn join(&mut self, number: u32) {
        let role = "trainer";
        let local_world_size = number + 1;
        self.handle(
            number,
            Input::Join {
                role,
                local_world_size,
                lost: &[],
            },
        );
    }

    /// Advances the time, and calls each machine at its deadline.
    fn pass(&mut self, time: Duration) {
        let end = self.now.mono + time;
        loop {
            let server = self.server.deadline().map(|at| (at, None));
            let clients = self.clients.iter().enumerate();
            let first = clients
                .filter_map(|(number, client)| Some((client.deadline()?, Some(number as u32))))
                .chain(server)
                .filter(|(at, _)| *at <= end)
                .min();
            let Some((at, who)) = first else { break };
            self.advance(at);
            match who {
                Some(number) => self.handle(number, Input::Tick),
                None => self.serve_input(server::Input::Tick),
            }
        }
        self.advance(end);
    }

    fn advance(&mut self, to: Mono) {
        let step = to.since(self.now.mono);
        self.now = Now {
            mono: self.now.mono + step,
            wall: self.now.wall + step,
        };
    }
}

#[test]
fn a_run_from_its_first_join_to_its_end_has_the_recorded_bytes() {
    let server = ServerMachine::new(Limits::default()).with_extension(extension());
    let mut talk = Conversation::new(server);
    let settings = Settings::new(2, 3);

    talk.note("two of three nodes join: the last call of 30 s, with heartbeats, then round 0");
    for _ in 0..2 {
        let number = talk.agent(settings);
        talk.join(number);
    }
    talk.pass(Duration::from_secs(31));

    talk.note("a third waits, everybody joins again: round 1");
    talk.agent(settings);
    talk.join(2);
    talk.handle(0, Input::Ask);
    talk.join(0);
    talk.join(1);

    talk.note("one fails and leaves, the others join again: round 2");
    talk.handle(1, Input::Failed("rank 1 was killed by signal 9"));
    talk.handle(1, Input::Leave);
    talk.join(0);
    talk.join(2);

    talk.note("one joins with other settings, and one while another of that name participates");
    let other = talk.agent(Settings::new(1, 3));
    talk.join(other);
    let twin = talk.agent_named(0, settings);
    talk.join(twin);

    talk.note("a connection closes: that node is lost");
    talk.serve_input(server::Input::Closed(ConnId(2)));

    talk.note("the first closes the run; no agent is admitted any more");
    talk.handle(0, Input::Close);
    talk.join(1);
    talk.handle(1, Input::Ask);

    talk.note("a foreign nonce is echoed; an operation that no version knows ends the connection");
    talk.connect(10, 0x0102_0304);
    talk.say(10, &[0x2f, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(talk.text, RECORDED);
}

/// Describes an output of an agent for the record.
fn outcome(output: &Output) -> String {
    match output {
        Output::Joined(joined) => {
            let FormedRound {
                round,
                rank,
                world_size,
                ref assignment,
                ref master_addr,
                master_port,
                is_recoverable: _,
                replaced: _,
            } = *joined;
            let (base_rank, world, _, _) = assignment.map(Into::into).unwrap_or_default();
            format!(
                "is {rank} of {world_size} in round {round}, its workers from {base_rank} of \
                 {world}, the master at {master_addr}:{master_port}"
            )
        }
        Output::NotJoined(NativeFailure::Refused(refusal)) => format!("is refused: {refusal:?}"),
        Output::Changed(RoundChange::Membership { round, reason }) => {
            format!("leaves round {round}: {reason}")
        }
        Output::Changed(RoundChange::PeerFailed { node, reason }) => {
            format!("sees {node} fail: {reason}")
        }
        Output::Changed(RoundChange::Closed) => "sees the run closed".to_owned(),
        Output::Closed => "has closed the run".to_owned(),
        Output::Waiting { .. } => "waits for nodes".to_owned(),
        Output::Status { closed, waiting } => format!("asked: closed {closed}, waiting {waiting}"),
        other => panic!("{other:?}"),
    }
}
