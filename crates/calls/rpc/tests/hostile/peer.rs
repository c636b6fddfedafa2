//! A connection of an attacker: it can send any frames, over any transport.

use std::io::{ErrorKind, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rdzv_rpc::transport::{self, Carrier, PeerAddress, Readiness, Token, TransportOptions};
use rdzv_rpc_proto::frame::decoder::FromHeap;
use rdzv_rpc_proto::frame::hello::{Accepted, Hello, PROTOCOL};
use rdzv_rpc_proto::frame::{
    Decoder, Frame, FrameKind, FrameLimits, Header, PartHead, encode, method_hash,
};
use rdzv_rpc_proto::worker::{WorkerId, WorkerInfo, WorkerName};
use rdzv_trust::token::{HandshakeRole, nonce};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time after which a worker that accepts no byte has stopped reading.
/// To stop reading is one of its defences.
const TAKES_NOTHING: Duration = Duration::from_millis(300);

/// Longest time until an answer that must arrive.
const ANSWERS: Duration = Duration::from_secs(20);

/// A job that is attacked, with the data that the attacker has.
pub(crate) struct Target {
    pub(crate) peer_address: PeerAddress,
    /// `None` if the job has no token, or if the attacker does not know it.
    pub(crate) token: Option<Token>,
}

/// A connection of an attacker.
pub(crate) struct Peer {
    carrier: Carrier,
    decoder: Decoder<FromHeap>,
    is_over: bool,
}

impl Target {
    /// Connects and sends nothing.
    pub(crate) fn connect(&self, options: &TransportOptions) -> Option<Peer> {
        let deadline = Instant::now() + Duration::from_secs(5);
        let carrier = transport::connect(&self.peer_address, options, deadline).ok()?;
        Some(Peer {
            carrier,
            decoder: Decoder::new(FrameLimits::default(), FromHeap),
            is_over: false,
        })
    }

    /// Connects by TCP and sends nothing.
    pub(crate) fn dial(&self) -> Option<Peer> {
        self.connect(&tcp())
    }

    /// Connects by TCP, and completes the greeting.
    pub(crate) fn join(&self) -> Option<Peer> {
        self.join_over(&tcp())
    }

    /// Connects over these transports, and completes the greeting.
    pub(crate) fn join_over(&self, options: &TransportOptions) -> Option<Peer> {
        let mut peer = self.connect(options)?;
        peer.greet(self.token.as_ref())?;
        Some(peer)
    }
}

/// Returns options that allow only TCP.
pub(crate) fn tcp() -> TransportOptions {
    TransportOptions {
        unix: false,
        ..TransportOptions::default()
    }
}

/// Returns options with a Unix socket and without shared memory.
pub(crate) fn unix() -> TransportOptions {
    TransportOptions {
        shared: false,
        ..TransportOptions::default()
    }
}

/// Encodes a frame without the bytes of its inline parts.
pub(crate) fn frame(header: &Header, body: &[u8], parts: &[PartHead]) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(header, body, parts, &mut bytes);
    bytes
}

/// Creates the header of a call.
pub(crate) fn call(number: u64, method: &str) -> Header {
    Header {
        call: number,
        method: method_hash(method, 1),
        ..Header::new(FrameKind::Request)
    }
}

/// Encodes a value without tensors as a body.
pub(crate) fn body(value: &impl serde::Serialize) -> Vec<u8> {
    postcard::to_extend(value, vec![0; 4]).unwrap()
}

/// Encodes a call with a text of this length as its argument.
pub(crate) fn request(number: u64, method: &str, length: usize) -> Vec<u8> {
    frame(&call(number, method), &text(length), &[])
}

/// Encodes a text of this length as a body.
pub(crate) fn text(length: usize) -> Vec<u8> {
    let mut text = body(&length);
    text.resize(text.len() + length, b'x');
    text
}

/// Creates the hello of an attacker.
pub(crate) fn hello(wants_proof: bool) -> Hello {
    Hello {
        version: PROTOCOL,
        features: 0,
        worker: WorkerInfo {
            id: WorkerId(66),
            name: WorkerName::new("attacker").unwrap(),
        },
        group: 0,
        incarnation: u64::from_le_bytes(nonce()[..8].try_into().unwrap()),
        host: transport::peer_address::host_identity(),
        process: std::process::id(),
        wants_proof,
        nonce: nonce(),
    }
}

impl Peer {
    /// Completes the greeting; `None` if the worker refuses it.
    fn greet(&mut self, token: Option<&Token>) -> Option<()> {
        let ours = hello(token.is_some()).to_bytes();
        self.send(&frame(&Header::new(FrameKind::Hello), &ours, &[]));
        let theirs = self.next(FrameKind::Hello)?.body;
        self.next(FrameKind::Accepted)?;
        let proof = token.map(|token| token.prove(HandshakeRole::Connector, &ours, &theirs));
        let accepted = Accepted { proof }.to_bytes();
        self.send(&frame(&Header::new(FrameKind::Accepted), &accepted, &[]))
            .then_some(())
    }

    /// Sends bytes; `false` if the worker closed the connection or reads no more.
    pub(crate) fn send(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() && !self.is_over {
            match self.carrier.write.write(&[IoSlice::new(bytes)]) {
                Ok(count) => bytes = &bytes[count..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if !self.has_room(TAKES_NOTHING) {
                        return false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.is_over = true,
            }
        }
        !self.is_over
    }

    fn has_room(&mut self, within: Duration) -> bool {
        let flags = match self.carrier.write.ready_when() {
            Readiness::Readable => PollFlags::IN,
            Readiness::Writable => PollFlags::OUT,
        };
        if !self.carrier.write.prepare_to_sleep() {
            return true;
        }
        let ready = is_ready(self.carrier.write.descriptor(), flags, within);
        self.carrier.write.awake();
        ready
    }

    /// Reads nothing until the worker closes the connection or the time is over.
    pub(crate) fn stay(&self, within: Duration) {
        is_ready(self.carrier.read.descriptor(), PollFlags::RDHUP, within);
    }

    /// Returns the next frame of this kind.
    /// `None` if the worker closes the connection before, or is silent.
    pub(crate) fn next(&mut self, kind: FrameKind) -> Option<Frame> {
        let deadline = Instant::now() + ANSWERS;
        loop {
            match self.take(deadline.saturating_duration_since(Instant::now())) {
                Some(frame) if frame.header.kind == kind => return Some(frame),
                Some(_) => {}
                None => return None,
            }
        }
    }

    /// Reads everything until nothing has arrived for this time.
    pub(crate) fn drain(&mut self, silent: Duration) {
        while self.take(silent).is_some() {}
    }

    fn take(&mut self, within: Duration) -> Option<Frame> {
        loop {
            if let Some(frame) = self.decoder.next().ok()? {
                return Some(frame);
            }
            match self.carrier.read.read(self.decoder.room()) {
                Ok(0) => {
                    self.is_over = true;
                    return None;
                }
                Ok(count) => self.decoder.filled(count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.carrier.read.prepare_to_sleep() {
                        let ready = is_ready(self.carrier.read.descriptor(), PollFlags::IN, within);
                        self.carrier.read.awake();
                        if !ready {
                            return None;
                        }
                    }
                }
                Err(_) => {
                    self.is_over = true;
                    return None;
                }
            }
        }
    }
}

fn is_ready(descriptor: BorrowedFd<'_>, flags: PollFlags, within: Duration) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(descriptor, flags)];
    let within = Timespec::try_from(within).unwrap();
    poll(&mut watched, Some(&within)).is_ok_and(|count| count > 0)
}
