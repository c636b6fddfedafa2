//! One agent of a crowd: its state machine, and its non-blocking connection.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, earliest};
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER, PROBE_VOTER};
use rdzv_rendezvous_proto::native_client::{Input, NativeClient, Output};
use rdzv_store_proto::wire::request;
use rdzv_voters::{ControlFrame, SearchOrder};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::{Domain, Socket, Type};

/// Time limit of each step if there is only one address.
const ONLY_ATTEMPT: Duration = Duration::from_secs(2);

/// Token of standard input.
pub(super) const STDIN: u64 = u64::MAX;

/// Maximum wait for events before a check of the deadlines.
pub(super) const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// State that all agents share.
pub(super) struct Crowd {
    pub(super) epoll: OwnedFd,
    origin: Instant,
    scratch: Vec<u8>,
}

impl Crowd {
    pub(super) fn new(epoll: OwnedFd, origin: Instant) -> Self {
        Self {
            epoll,
            origin,
            scratch: vec![0; 16 << 10],
        }
    }

    pub(super) fn now(&self) -> Now {
        Now::at(Mono::from_origin(self.origin.elapsed()))
    }
}

/// The state of a connection.
enum Link {
    Down,
    /// The agent asks an address whether the coordinator is there, or where it is.
    Asking {
        stream: TcpStream,
        index: usize,
        step: Step,
        /// Time limit of a step, and the deadline of the current step.
        within: Duration,
        deadline: Mono,
        /// Bytes of the answer that have arrived.
        answer: Vec<u8>,
    },
    Up(TcpStream),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Connect,
    Probe,
    WhoCoordinates,
}

/// Result of a step towards the coordinator.
enum Asked {
    /// The next step has begun, or the answer is not complete yet.
    Waiting,
    Coordinator,
    /// The agent must ask the next address.
    Next,
    /// No coordinator is known.
    NoCoordinator,
}

/// An agent with its connection.
pub(super) struct Connected {
    /// Token that identifies its socket.
    token: u64,
    pub(super) client: NativeClient,
    endpoints: Vec<String>,
    order: SearchOrder,
    link: Link,
    /// Number of addresses that were asked since the search began.
    asked: usize,
    /// Outputs of the state machine that do not concern the connection.
    pub(super) heard: VecDeque<Output>,
    /// `true` if no coordinator has answered over the current connection.
    pub(super) is_away: bool,
}

impl Connected {
    pub(super) fn new(token: u64, endpoints: &[String], client: NativeClient) -> Self {
        Self {
            token,
            client,
            endpoints: endpoints.to_vec(),
            order: SearchOrder::new(endpoints.to_vec()),
            link: Link::Down,
            asked: 0,
            heard: VecDeque::new(),
            is_away: false,
        }
    }

    /// Starts to connect as soon as the state machine has data to send.
    pub(super) fn begin(&mut self, crowd: &mut Crowd) {
        let why = "it has not begun".to_owned();
        self.handle(crowd, Input::Disconnected(why));
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let asking = match &self.link {
            Link::Asking { deadline, .. } => Some(*deadline),
            _ => None,
        };
        earliest([self.client.deadline(), asking])
    }

    pub(super) fn tick(&mut self, crowd: &mut Crowd) {
        let now = crowd.now();
        if let Link::Asking { step, deadline, .. } = &self.link
            && *deadline <= now.mono
        {
            // The search ends if a voter names no coordinator in time: the wait was long enough.
            let asked = match step {
                Step::WhoCoordinates => Asked::NoCoordinator,
                Step::Connect | Step::Probe => Asked::Next,
            };
            return self.after(crowd, asked);
        }
        if self.client.deadline().is_some_and(|at| at <= now.mono) {
            self.handle(crowd, Input::Tick);
        }
    }

    /// Handles an event of the socket.
    pub(super) fn ready(&mut self, crowd: &mut Crowd) {
        match &mut self.link {
            Link::Down => {}
            Link::Asking { .. } => {
                let asked = self.step(crowd);
                self.after(crowd, asked.unwrap_or(Asked::Next));
            }
            Link::Up(stream) => {
                let mut scratch = std::mem::take(&mut crowd.scratch);
                match stream.read(&mut scratch) {
                    Ok(0) => self.broken(crowd, "it closed the connection".to_owned()),
                    Ok(count) => {
                        self.is_away = false;
                        self.handle(crowd, Input::Bytes(&scratch[..count]));
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => self.broken(crowd, error.to_string()),
                }
                crowd.scratch = scratch;
            }
        }
    }

    fn broken(&mut self, crowd: &mut Crowd, why: String) {
        self.link = Link::Down;
        self.is_away = true;
        self.handle(crowd, Input::Disconnected(why));
    }

    /// Continues a step after an event of the socket.
    fn step(&mut self, crowd: &mut Crowd) -> io::Result<Asked> {
        let Link::Asking {
            stream,
            step,
            within,
            deadline,
            answer,
            ..
        } = &mut self.link
        else {
            return Ok(Asked::Waiting);
        };
        let next = crowd.now().mono + *within;
        if *step == Step::Connect {
            if let Some(error) = stream.take_error()? {
                return Err(error);
            }
            let mut greeting = Vec::new();
            request::preamble(&mut greeting, PROBE);
            stream.write_all(&greeting)?;
            (*step, *deadline) = (Step::Probe, next);
            let token = EventData::new_u64(self.token);
            epoll::modify(&crowd.epoll, &*stream, token, EventFlags::IN)?;
            return Ok(Asked::Waiting);
        }
        let mut bytes = [0; 256];
        // Reads only the answer: the state machine reads what follows.
        let wanted = match step {
            Step::WhoCoordinates => bytes.len(),
            _ => 4 - answer.len(),
        };
        match stream.read(&mut bytes[..wanted]) {
            Ok(0) => return Ok(Asked::Next),
            Ok(count) => answer.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Asked::Waiting),
            Err(error) => return Err(error),
        }
        if *step == Step::WhoCoordinates {
            return Ok(self.named());
        }
        let Ok(whole) = <[u8; 4]>::try_from(&answer[..]) else {
            return Ok(Asked::Waiting);
        };
        match u32::from_le_bytes(whole) {
            PROBE_ANSWER => Ok(Asked::Coordinator),
            PROBE_VOTER => {
                let mut question = Vec::new();
                ControlFrame::WhoCoordinates.write(&mut question);
                stream.write_all(&question)?;
                answer.clear();
                (*step, *deadline) = (Step::WhoCoordinates, next);
                Ok(Asked::Waiting)
            }
            _ => Ok(Asked::Next),
        }
    }

    /// Reads the address of the coordinator from the answer of a voter.
    fn named(&mut self) -> Asked {
        let Link::Asking { answer, .. } = &self.link else {
            return Asked::Waiting;
        };
        let Some((head, body)) = answer.split_at_checked(9) else {
            return Asked::Waiting;
        };
        let length = head[1..].try_into().map_or(0, u64::from_le_bytes);
        if (body.len() as u64) < length {
            return Asked::Waiting;
        }
        match ControlFrame::read(head[0], body) {
            Ok(ControlFrame::Elsewhere { address, .. }) if self.order.elsewhere(&address) => {
                Asked::Next
            }
            _ => Asked::NoCoordinator,
        }
    }

    fn after(&mut self, crowd: &mut Crowd, asked: Asked) {
        match asked {
            Asked::Waiting => {}
            Asked::Coordinator => {
                if let Link::Asking { stream, index, .. } =
                    std::mem::replace(&mut self.link, Link::Down)
                {
                    self.order.found(index);
                    self.link = Link::Up(stream);
                }
                self.handle(crowd, Input::Connected(None));
            }
            Asked::Next if self.asked <= self.order.len() => {
                self.link = Link::Down;
                self.ask_next(crowd);
            }
            Asked::Next | Asked::NoCoordinator => {
                self.link = Link::Down;
                self.order.failed();
                let why = "no peer coordinates".to_owned();
                self.handle(crowd, Input::Disconnected(why));
            }
        }
    }

    fn ask_next(&mut self, crowd: &mut Crowd) {
        self.asked += 1;
        let index = self.order.advance();
        let opened = self.open(crowd, index);
        match opened {
            Ok(link) => self.link = link,
            Err(_) => self.after(crowd, Asked::Next),
        }
    }

    fn open(&self, crowd: &Crowd, index: usize) -> Result<Link, Box<dyn std::error::Error>> {
        let address: SocketAddr = self.endpoints[index].parse()?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(EINPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let stream = TcpStream::from(socket);
        let token = EventData::new_u64(self.token);
        epoll::add(&crowd.epoll, &stream, token, EventFlags::OUT)?;
        let within = match self.endpoints.len() {
            1 => ONLY_ATTEMPT,
            _ => self.order.attempt(),
        };
        Ok(Link::Asking {
            stream,
            index,
            step: Step::Connect,
            within,
            deadline: crowd.now().mono + within,
            answer: Vec::new(),
        })
    }

    /// Passes an input to the state machine, and follows its outputs.
    pub(super) fn handle(&mut self, crowd: &mut Crowd, input: Input<'_>) {
        self.client.handle(crowd.now(), input);
        let (mut dials, mut broke) = (false, None);
        while let Some(output) = self.client.poll_output() {
            match output {
                Output::Dial => dials = true,
                Output::HangUp => self.link = Link::Down,
                Output::Send(bytes) => {
                    if let Link::Up(stream) = &mut self.link
                        && let Err(error) = stream.write_all(&bytes)
                    {
                        broke = Some(error.to_string());
                    }
                }
                other => self.heard.push_back(other),
            }
        }
        if let Some(why) = broke {
            return self.broken(crowd, why);
        }
        if dials {
            self.asked = 0;
            self.is_away = true;
            self.ask_next(crowd);
        }
    }

    /// Publishes the address at which the workers of a round would meet.
    pub(super) fn publish(&mut self, crowd: &mut Crowd, round: u64) {
        let publish = Input::Publish {
            round,
            addr: "node-00000",
            port: 29500,
        };
        self.handle(crowd, publish);
    }
}

/// Error of a connection attempt that is not complete.
const EINPROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();
