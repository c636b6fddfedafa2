//! One agent of a crowd: its machine, and its connection, which is made without anybody waiting for it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::coordinator::wire::{PROBE, PROBE_ANSWER, PROBE_VOTER};
use rdzv_rendezvous_proto::native_client::{Input, NativeClient, Output};
use rdzv_store_proto::wire::request;
use rdzv_voters::{Frame, SearchOrder};
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use socket2::{Domain, Socket, Type};

/// The time for the only place to answer, as agents give it.
const ONLY_ATTEMPT: Duration = Duration::from_secs(2);

/// The token of standard input.
pub(super) const STDIN: u64 = u64::MAX;

/// The longest time between two looks at deadlines.
pub(super) const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The part that all agents share.
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
        Now {
            mono: Mono::from_origin(self.origin.elapsed()),
            wall: Wall::default(),
        }
    }
}

/// The state of a connection.
enum Link {
    Down,
    /// A place is asked whether it is the coordinator, or where that is.
    Asking {
        stream: TcpStream,
        place: usize,
        step: Step,
        /// The time for a step, and when that of this one is over.
        within: Duration,
        until: Mono,
        /// The answer so far.
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

/// The result of a step towards the coordinator.
enum Asked {
    /// The next one is under way, or nothing has come yet.
    Waiting,
    Coordinator,
    /// This place has nothing more to say.
    Next,
    /// Nobody coordinates.
    Nobody,
}

/// An agent with its connection.
pub(super) struct Connected {
    /// Identifies its socket.
    token: u64,
    pub(super) client: NativeClient,
    places: Vec<String>,
    order: SearchOrder,
    link: Link,
    /// Places that were asked since there was no connection.
    asked: usize,
    /// The outputs of the machine that are not about the connection.
    pub(super) heard: VecDeque<Output>,
    /// It has not heard from a coordinator over its present connection.
    pub(super) is_away: bool,
}

impl Connected {
    pub(super) fn new(token: u64, places: &[String], client: NativeClient) -> Self {
        Self {
            token,
            client,
            places: places.to_vec(),
            order: SearchOrder::new(places.to_vec()),
            link: Link::Down,
            asked: 0,
            heard: VecDeque::new(),
            is_away: false,
        }
    }

    /// Connects for the first time as soon as the machine wants to say something.
    pub(super) fn begin(&mut self, crowd: &mut Crowd) {
        let why = "it has not begun".to_owned();
        self.handle(crowd, Input::Disconnected(why));
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let asking = match &self.link {
            Link::Asking { until, .. } => Some(*until),
            _ => None,
        };
        [self.client.deadline(), asking].into_iter().flatten().min()
    }

    pub(super) fn tick(&mut self, crowd: &mut Crowd) {
        let now = crowd.now();
        if let Link::Asking { step, until, .. } = &self.link
            && *until <= now.mono
        {
            // A voter that names nobody in time was waited for already.
            let asked = match step {
                Step::WhoCoordinates => Asked::Nobody,
                Step::Connect | Step::Probe => Asked::Next,
            };
            return self.after(crowd, asked);
        }
        if self.client.deadline().is_some_and(|at| at <= now.mono) {
            self.handle(crowd, Input::Tick);
        }
    }

    /// Its socket has something.
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

    /// Goes on with the question to a place whose socket has something.
    fn step(&mut self, crowd: &mut Crowd) -> io::Result<Asked> {
        let Link::Asking {
            stream,
            step,
            within,
            until,
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
            (*step, *until) = (Step::Probe, next);
            let token = EventData::new_u64(self.token);
            epoll::modify(&crowd.epoll, &*stream, token, EventFlags::IN)?;
            return Ok(Asked::Waiting);
        }
        let mut bytes = [0; 256];
        // No more than the answer: what follows it is for the machine.
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
                Frame::WhoCoordinates.write(&mut question);
                stream.write_all(&question)?;
                answer.clear();
                (*step, *until) = (Step::WhoCoordinates, next);
                Ok(Asked::Waiting)
            }
            _ => Ok(Asked::Next),
        }
    }

    /// Reads where a voter says that the coordinator is.
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
        match Frame::read(head[0], body) {
            Ok(Frame::Elsewhere { address, .. }) if self.order.elsewhere(&address) => Asked::Next,
            _ => Asked::Nobody,
        }
    }

    fn after(&mut self, crowd: &mut Crowd, asked: Asked) {
        match asked {
            Asked::Waiting => {}
            Asked::Coordinator => {
                if let Link::Asking { stream, place, .. } =
                    std::mem::replace(&mut self.link, Link::Down)
                {
                    self.order.found(place);
                    self.link = Link::Up(stream);
                }
                self.handle(crowd, Input::Connected(None));
            }
            Asked::Next if self.asked <= self.order.len() => {
                self.link = Link::Down;
                self.ask_next(crowd);
            }
            Asked::Next | Asked::Nobody => {
                self.link = Link::Down;
                self.order.failed();
                let why = "nobody coordinates".to_owned();
                self.handle(crowd, Input::Disconnected(why));
            }
        }
    }

    fn ask_next(&mut self, crowd: &mut Crowd) {
        self.asked += 1;
        let place = self.order.advance();
        let opened = self.open(crowd, place);
        match opened {
            Ok(link) => self.link = link,
            Err(_) => self.after(crowd, Asked::Next),
        }
    }

    fn open(&self, crowd: &Crowd, place: usize) -> Result<Link, Box<dyn std::error::Error>> {
        let address: SocketAddr = self.places[place].parse()?;
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
        let within = match self.places.len() {
            1 => ONLY_ATTEMPT,
            _ => self.order.attempt(),
        };
        Ok(Link::Asking {
            stream,
            place,
            step: Step::Connect,
            within,
            until: crowd.now().mono + within,
            answer: Vec::new(),
        })
    }

    /// Tells the machine something, and does what it wants of its connection.
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

    /// Says where the workers of a round would meet.
    pub(super) fn publish(&mut self, crowd: &mut Crowd, round: u64) {
        let publish = Input::Publish {
            round,
            addr: "node-00000",
            port: 29500,
        };
        self.handle(crowd, publish);
    }
}

/// A connection is being made.
const EINPROGRESS: i32 = rustix::io::Errno::INPROGRESS.raw_os_error();
