//! One of the crowd: the machine of a native agent, and a socket.

use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use rdzv_core::machine::Machine as _;
use rdzv_core::rendezvous::host::wire::{PROBE, PROBE_ANSWER};
use rdzv_core::rendezvous::native_client::{Change, Input, Joined, NativeClient, Output};
use rdzv_core::rendezvous::{NodeDesc, Settings};
use rdzv_core::store::wire::request;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_store::{ServerOptions, TcpStoreServer};

pub(crate) struct Agent {
    client: NativeClient,
    stream: TcpStream,
    /// The answer to the greeting, as far as it has come.
    greeting: Vec<u8>,
    joined: Option<Joined>,
    /// The workers' store, if this agent has had rank 0.
    workers: Option<TcpStoreServer>,
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
}

impl Agent {
    /// Connects, greets and joins, without waiting for an answer.
    pub(crate) fn connect(
        address: SocketAddr,
        run: &str,
        number: u32,
        count: u32,
    ) -> Result<Self, Box<dyn Error>> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        let mut preamble = Vec::new();
        request::preamble(&mut preamble, PROBE);
        stream.write_all(&preamble)?;
        stream.set_nonblocking(true)?;
        let node = NodeDesc {
            addr: "127.0.0.1".to_owned(),
            pid: i64::from(number),
            local_id: 0,
        };
        let settings = Settings::new(count, count);
        let now = Mono::ZERO;
        let mut agent = Self {
            client: NativeClient::new(at(now), u64::from(number), run, node, settings),
            stream,
            greeting: Vec::new(),
            joined: None,
            workers: None,
            // The greeting is two.
            operations: 2,
            bytes: preamble.len() as u64,
        };
        agent.join(now);
        Ok(agent)
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    pub(crate) fn join(&mut self, now: Mono) {
        let join = Input::Join {
            role: "default",
            local_world_size: 8,
        };
        self.handle(now, join);
    }

    pub(crate) fn forget_round(&mut self) {
        self.joined = None;
    }

    pub(crate) fn is_in_round(&self, round: u64) -> bool {
        self.joined
            .as_ref()
            .is_some_and(|joined| joined.round == round && joined.assignment.is_some())
    }

    pub(crate) fn is_due(&self, now: Mono) -> bool {
        self.client.deadline().is_some_and(|at| at <= now)
    }

    pub(crate) fn read(&mut self, now: Mono) -> Result<(), Box<dyn Error>> {
        let mut buffer = [0; 4096];
        let count = match self.stream.read(&mut buffer) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        self.bytes += count as u64;
        let mut bytes = &buffer[..count];
        if self.greeting.len() < 4 {
            let (greeting, rest) = bytes.split_at(bytes.len().min(4 - self.greeting.len()));
            self.greeting.extend_from_slice(greeting);
            bytes = rest;
            if self.greeting.len() == 4 && self.greeting != PROBE_ANSWER.to_le_bytes() {
                return Err("the server hosts no rendezvous".into());
            }
        }
        self.handle(now, Input::Bytes(bytes));
        Ok(())
    }

    pub(crate) fn handle(&mut self, now: Mono, input: Input<'_>) {
        self.client.handle(at(now), input);
        let mut again = false;
        let mut lead = None;
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Send(bytes) => {
                    self.operations += 1;
                    self.bytes += bytes.len() as u64;
                    self.stream
                        .write_all(&bytes)
                        .expect("an operation is far smaller than the socket's buffer");
                }
                Output::Lead { round } => lead = Some(round),
                Output::Joined(joined) => self.joined = Some(joined),
                Output::Changed(Change::Membership { .. }) => again = true,
                other => panic!("the crowd is disturbed: {other:?}"),
            }
        }
        if let Some(round) = lead {
            let port = self.host();
            let addr = "127.0.0.1";
            self.handle(now, Input::Publish { round, addr, port });
        }
        if again {
            self.join(now);
        }
    }

    /// Offers the workers' store, as a real agent with rank 0 does.
    fn host(&mut self) -> u16 {
        if let Some(server) = &self.workers {
            server.purge(&[]);
            return server.port();
        }
        let server = TcpStoreServer::start(ServerOptions {
            host: Some("127.0.0.1".to_owned()),
            ..ServerOptions::default()
        })
        .expect("a free port");
        self.workers.insert(server).port()
    }
}

fn at(mono: Mono) -> Now {
    Now {
        mono,
        wall: Wall::default(),
    }
}
