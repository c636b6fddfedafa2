//! An attacker and its connections.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Socket, Type};

use super::request;

/// Time without an accepted byte after which the server counts as not reading.
/// Not reading from a connection is one of the server's defences.
const TAKES_NOTHING: Duration = Duration::from_millis(100);

/// An attacker: the server's address, and the open connections.
#[derive(Debug)]
pub struct Attacker {
    server: SocketAddr,
    from: Option<IpAddr>,
    peers: Vec<TestPeer>,
}

impl Attacker {
    /// Creates an attacker with the address `from`, or one that the system selects.
    pub fn new(server: SocketAddr, from: Option<IpAddr>) -> Self {
        Self {
            server,
            from,
            peers: Vec::new(),
        }
    }

    /// Connects without sending anything.
    /// `None` if the server accepts no connection.
    pub fn connect(&self) -> Option<TestPeer> {
        let socket = Socket::new(Domain::for_address(self.server), Type::STREAM, None).ok()?;
        if let Some(from) = self.from {
            socket.bind(&SocketAddr::new(from, 0).into()).ok()?;
        }
        socket
            .connect_timeout(&self.server.into(), Duration::from_secs(5))
            .ok()?;
        socket.set_nonblocking(true).ok()?;
        Some(TestPeer {
            stream: socket.into(),
            sent: 0,
            received: 0,
        })
    }

    /// Connects as a client does.
    pub fn join(&self) -> Option<TestPeer> {
        let mut peer = self.connect()?;
        peer.send(&request::validate()).then_some(peer)
    }

    /// Connects as a client and sends `times` requests, reading replies if `takes`.
    pub fn flood(&mut self, takes: bool, times: usize, mut request: impl FnMut(usize) -> Vec<u8>) {
        let Some(mut peer) = self.join() else {
            return;
        };
        for number in 0..times {
            if !peer.exchange(&request(number), takes) {
                break;
            }
        }
        self.keep(peer);
    }

    /// Makes the server execute a request, and waits until it is executed.
    /// The wait ends early if the server sends nothing for 100 ms.
    pub fn prepare(&mut self, request: &[u8]) {
        if let Some(mut peer) = self.join() {
            // The answer to the second request shows that the first one has been executed.
            peer.send(&[request, request::NUM_KEYS].concat());
            peer.take_at_least(8);
            self.keep(peer);
        }
    }

    /// Keeps a connection open.
    pub fn keep(&mut self, peer: TestPeer) {
        self.peers.push(peer);
    }
}

/// A connection of an attacker.
/// A call ends soon after the server stops reading or sending.
#[derive(Debug)]
pub struct TestPeer {
    stream: TcpStream,
    /// Bytes that the kernel has accepted for the server.
    pub sent: usize,
    /// Bytes of replies that were read.
    /// `usize::MAX` after the server has closed the connection.
    pub received: usize,
}

impl TestPeer {
    /// Sends bytes; `false` if the server has refused them or no longer reads.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        self.exchange(bytes, false)
    }

    /// Sends bytes like [`TestPeer::send`], but also reads replies if `takes`.
    pub fn exchange(&mut self, mut bytes: &[u8], takes: bool) -> bool {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => {
                    self.sent += count;
                    bytes = &bytes[count..];
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let took = takes && self.take();
                    let wanted = if takes {
                        PollFlags::IN | PollFlags::OUT
                    } else {
                        PollFlags::OUT
                    };
                    if !took && !self.is_ready(wanted) {
                        return false;
                    }
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        if takes {
            self.take();
        }
        true
    }

    /// Reads the available replies.
    ///
    /// `true` if any bytes were read, or if the server has now closed the connection.
    pub fn take(&mut self) -> bool {
        self.take_up_to(usize::MAX)
    }

    /// Reads replies until `received` is at least `count` or no more bytes arrive.
    pub fn take_at_least(&mut self, count: usize) {
        while self.received < count {
            if !self.take_up_to(count) && !self.is_ready(PollFlags::IN) {
                return;
            }
        }
    }

    /// Reads available replies until `received` is `count`.
    /// `true` if any bytes were read, or if the server has now closed the connection.
    fn take_up_to(&mut self, count: usize) -> bool {
        let (mut buffer, before) = ([0; 64 << 10], self.received);
        while self.received < count {
            let room = buffer.len().min(count - self.received);
            match self.stream.read(&mut buffer[..room]) {
                Ok(0) => {
                    self.received = usize::MAX;
                    return true;
                }
                Ok(count) => self.received += count,
                Err(_) => break,
            }
        }
        self.received > before
    }

    /// Returns the underlying stream.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        // Without lingering, closing a socket resets the connection.
        let _ = Socket::from(self.stream).set_linger(Some(Duration::ZERO));
    }

    /// Waits a short time for the server to accept or send bytes.
    fn is_ready(&self, wanted: PollFlags) -> bool {
        let timeout = Timespec::try_from(TAKES_NOTHING).ok();
        poll(&mut [PollFd::new(&self.stream, wanted)], timeout.as_ref())
            .is_ok_and(|ready| ready > 0)
    }
}
