//! One blocking connection that carries the bytes of a [`ClientMachine`].
//!
//! It also applies the machine's deadlines.
//!
//! A short request with a short answer usually costs two system calls, one write and one read. The
//! deadlines are socket timeouts, which are set again only if they would end too late.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdzv_core::machine::Machine;
use rdzv_core::time::{Mono, Now};
use rdzv_store_proto::client::{ClientMachine, Input, OperationFailure, Output, StoreOperation};
use rdzv_store_proto::wire::reply::Reply;
use rdzv_trust::{Channel, Session};
use rustix::buffer::spare_capacity;

use crate::interrupt;

/// Maximum number of bytes read at a time, except for the rest of a value.
const READ_AT_ONCE: usize = 16 << 10;

/// Longest time between two reads of the clock when there is no deadline.
const NO_END: Duration = Duration::from_secs(3600);

#[derive(Debug)]
pub(super) struct Link {
    stream: Arc<TcpStream>,
    /// TLS session of the connection; `None` if its bytes are not encrypted.
    tls: Option<Box<Session<TcpStream>>>,
    peer: SocketAddr,
    machine: ClientMachine,
    /// Origin of the machine's monotonic time.
    origin: Instant,
    buffer: Box<[u8]>,
    receive_timeout: Option<Duration>,
    send_timeout: Option<Duration>,
    /// Error of the socket when it broke.
    broken: Option<io::Error>,
}

/// Reason why an operation failed, and the error of the socket.
#[derive(Debug)]
pub(super) struct Broken {
    pub(super) failure: OperationFailure,
    pub(super) source: io::Error,
}

impl Link {
    /// Wraps a connection whose preamble has been exchanged.
    pub(super) fn new(
        channel: Channel,
        peer: SocketAddr,
        max_reply_bytes: usize,
    ) -> io::Result<Self> {
        let (stream, tls) = match channel {
            Channel::Plain(stream) => (Arc::new(stream), None),
            Channel::Tls(session) => (Arc::new(session.stream().try_clone()?), Some(session)),
        };
        Ok(Self {
            stream,
            tls,
            peer,
            machine: ClientMachine::new(max_reply_bytes),
            origin: Instant::now(),
            buffer: vec![0; READ_AT_ONCE].into_boxed_slice(),
            receive_timeout: None,
            send_timeout: None,
            broken: None,
        })
    }

    /// Returns the numeric address of the server.
    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns the socket, which other threads may inspect or shut down.
    pub(super) fn socket(&self) -> Arc<TcpStream> {
        Arc::clone(&self.stream)
    }

    /// `true` if the connection can still be used.
    pub(super) fn is_alive(&self) -> bool {
        self.machine.death().is_none()
    }

    /// Performs one operation.
    /// `payload` is sent right after the operation's first request. An immediate reply may take
    /// `reply_timeout`.
    pub(super) fn perform(
        &mut self,
        operation: StoreOperation,
        payload: &[u8],
        reply_timeout: Duration,
    ) -> Result<Option<Reply>, Broken> {
        match self.begin(operation, payload, reply_timeout) {
            Some(ended) => ended,
            None => self.finish(reply_timeout),
        }
    }

    /// Sends the request of an operation, with `payload` right after it.
    /// [`finish`](Self::finish) reads the answer. Returns the result if the operation has ended
    /// already.
    pub(super) fn begin(
        &mut self,
        operation: StoreOperation,
        payload: &[u8],
        reply_timeout: Duration,
    ) -> Option<Result<Option<Reply>, Broken>> {
        let start = Input::Start {
            operation,
            reply_timeout,
        };
        self.machine.handle(self.now(), start);
        self.drain(payload, reply_timeout)
    }

    /// Reads the answer until the current operation has ended.
    pub(super) fn finish(&mut self, reply_timeout: Duration) -> Result<Option<Reply>, Broken> {
        loop {
            self.receive();
            if let Some(ended) = self.drain(&[], reply_timeout) {
                return ended;
            }
        }
    }

    /// Applies the machine's outputs, with `payload` after its first request.
    /// Returns the result if the operation has ended.
    fn drain(
        &mut self,
        mut payload: &[u8],
        reply_timeout: Duration,
    ) -> Option<Result<Option<Reply>, Broken>> {
        let mut done = None;
        let mut failed = None;
        while let Some(output) = self.machine.poll_output() {
            match output {
                Output::Send(bytes) if failed.is_none() => {
                    let payload = std::mem::take(&mut payload);
                    failed = self.send(&bytes, payload, reply_timeout).err();
                }
                Output::Send(_) => {}
                Output::Done(result) => done = Some(result),
            }
        }
        if let Some(error) = failed {
            let failure = match error.kind() {
                io::ErrorKind::Interrupted => OperationFailure::GivenUp,
                _ => OperationFailure::Closed,
            };
            self.break_off(error);
            while self.machine.poll_output().is_some() {}
            return Some(Err(self.broken(failure)));
        }
        done.map(|done| done.map_err(|failure| self.broken(failure)))
    }

    fn now(&self) -> Now {
        Now::at(Mono::from_origin(self.origin.elapsed()))
    }

    /// Waits for bytes or for the machine's deadline.
    /// Passes the machine an input for the event that comes first.
    fn receive(&mut self) {
        let remaining = match self.machine.deadline() {
            Some(deadline) => deadline.since(self.now().mono),
            None => NO_END,
        };
        let read = if remaining.is_zero() {
            Err(io::ErrorKind::WouldBlock.into())
        } else {
            self.read_within(interrupt::slice(Some(remaining)).unwrap_or(remaining))
        };
        match read {
            Ok((0, _)) => self.break_off(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, true)) => self.machine.handle(self.now(), Input::Filled),
            Ok((length, false)) => {
                let now = self.now();
                let bytes = &self.buffer[..length];
                self.machine.handle(now, Input::Received(bytes));
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::TimedOut
                | io::ErrorKind::Interrupted => {
                    let input = if interrupt::is_wanted() {
                        Input::GiveUp
                    } else {
                        Input::Tick
                    };
                    self.machine.handle(self.now(), input);
                }
                _ => self.break_off(error),
            },
        }
    }

    /// Reads once and returns the number of bytes.
    /// The second value is `true` if the bytes are in the space of the machine, and `false` if they
    /// are in the buffer.
    fn read_within(&mut self, remaining: Duration) -> io::Result<(usize, bool)> {
        if ends_too_late(self.receive_timeout, remaining) {
            self.stream.set_read_timeout(Some(remaining))?;
            self.receive_timeout = Some(remaining);
        }
        let space = self.machine.space();
        let is_placed = space.is_some();
        let length = match (space, &mut self.tls) {
            (Some(space), Some(tls)) => tls.read_to(space)?,
            (None, Some(tls)) => tls.read(&mut self.buffer)?,
            (Some(space), None) => rustix::io::read(&*self.stream, spare_capacity(space))?,
            (None, None) => (&*self.stream).read(&mut self.buffer)?,
        };
        Ok((length, is_placed))
    }

    fn send(&mut self, head: &[u8], payload: &[u8], within: Duration) -> io::Result<()> {
        let by = Instant::now().checked_add(within);
        let total = head.len() + payload.len();
        let mut sent = 0;
        while sent < total {
            let remaining = by.map_or(NO_END, |by| by.saturating_duration_since(Instant::now()));
            let remaining = interrupt::slice(Some(remaining)).unwrap_or(remaining);
            if remaining.is_zero() {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("the peer accepted only {sent} of {total} bytes in time"),
                ));
            }
            if ends_too_late(self.send_timeout, remaining) {
                self.stream.set_write_timeout(Some(remaining))?;
                self.send_timeout = Some(remaining);
            }
            let head_left = &head[sent.min(head.len())..];
            let payload_left = &payload[sent.saturating_sub(head.len())..];
            let parts = [IoSlice::new(head_left), IoSlice::new(payload_left)];
            let written = match &mut self.tls {
                Some(tls) => tls.write(&parts),
                None if payload_left.is_empty() => (&*self.stream).write(head_left),
                None => (&*self.stream).write_vectored(&parts),
            };
            match written {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => sent += written,
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted
                            | io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                    ) =>
                {
                    if interrupt::is_wanted() {
                        return Err(io::ErrorKind::Interrupted.into());
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn break_off(&mut self, error: io::Error) {
        self.broken = Some(error);
        self.machine.handle(self.now(), Input::Closed);
    }

    fn broken(&mut self, failure: OperationFailure) -> Broken {
        if matches!(failure, OperationFailure::NoStore(_)) {
            // The connection can no longer be used, and the peer may continue to send without a
            // limit.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        let source = self.broken.take().unwrap_or_else(|| match &failure {
            OperationFailure::TimedOut | OperationFailure::NoAnswer | OperationFailure::GivenUp => {
                io::ErrorKind::TimedOut.into()
            }
            OperationFailure::Closed => io::Error::new(
                io::ErrorKind::NotConnected,
                "the connection failed in an earlier operation",
            ),
            OperationFailure::NoStore(error) => {
                io::Error::new(io::ErrorKind::InvalidData, error.clone())
            }
        });
        Broken { failure, source }
    }
}

/// `true` if an earlier socket timeout would end noticeably too late.
/// An early end does no harm: the machine receives a tick, and the wait continues.
fn ends_too_late(set: Option<Duration>, remaining: Duration) -> bool {
    let tolerance = remaining / 256 + Duration::from_millis(1);
    set.is_none_or(|set| set > remaining.saturating_add(tolerance))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use rdzv_store_proto::client::Expects;
    use rdzv_store_proto::limits::MAX_REPLY_BYTES;
    use rdzv_store_proto::wire::reply::Shape;

    use super::*;

    const SHORT: Duration = Duration::from_millis(40);
    const LONG: Duration = Duration::from_secs(20);

    fn pair() -> (Link, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = listener.local_addr().unwrap();
        let stream = TcpStream::connect(peer).unwrap();
        (
            Link::new(Channel::Plain(stream), peer, MAX_REPLY_BYTES).unwrap(),
            listener.accept().unwrap().0,
        )
    }

    fn ask(shape: Shape) -> StoreOperation {
        StoreOperation {
            request: b"question".to_vec(),
            expects: Expects::Reply(shape),
        }
    }

    #[test]
    fn a_server_that_does_not_answer_is_given_up() {
        let (mut link, mut server) = pair();
        server.write_all(&[1, 2, 3]).unwrap();
        let started = Instant::now();
        let broken = link.perform(ask(Shape::Number), &[], SHORT).unwrap_err();
        assert_eq!(broken.failure, OperationFailure::NoAnswer);
        assert!((SHORT..LONG).contains(&started.elapsed()));
        assert!(!link.is_alive());
    }

    #[test]
    fn a_server_that_does_not_read_is_given_up() {
        let (mut link, _server) = pair();
        let payload = vec![0; 64 << 20];
        let tell = StoreOperation {
            request: b"head".to_vec(),
            expects: Expects::Nothing,
        };
        let broken = link.perform(tell, &payload, SHORT).unwrap_err();
        assert_eq!(broken.failure, OperationFailure::Closed);
        assert_eq!(broken.source.kind(), io::ErrorKind::TimedOut);
        let broken = link.perform(ask(Shape::Byte), &[], LONG).unwrap_err();
        assert_eq!(broken.source.kind(), io::ErrorKind::NotConnected);
    }

    #[test]
    fn an_interrupted_send_is_no_disconnection() {
        let (mut link, _server) = pair();
        let payload = vec![0; 64 << 20];
        let sent = || link.perform(ask(Shape::Byte), &payload, LONG);
        let broken = interrupt::interruptible(|| true, sent).unwrap_err();
        assert_eq!(broken.failure, OperationFailure::GivenUp);
        assert!(!link.is_alive());
    }

    #[test]
    fn a_shorter_timeout_is_kept_after_a_longer_one() {
        let (mut link, mut server) = pair();
        server.write_all(&[1]).unwrap();
        link.perform(ask(Shape::Byte), &[], LONG).unwrap();
        let started = Instant::now();
        link.perform(ask(Shape::Byte), &[], SHORT).unwrap_err();
        assert!(started.elapsed() < LONG / 2);
    }

    #[test]
    fn payload_and_value_pass_in_many_pieces() {
        let (mut link, mut server) = pair();
        let value: Vec<u8> = (0..1_000_003_u32).map(|number| number as u8).collect();
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut received = vec![0; 4 + value.len()];
                server.read_exact(&mut received).unwrap();
                assert_eq!(received[..4], *b"head");
                assert!(received[4..] == value);
                let length = (value.len() as u64).to_le_bytes();
                server.write_all(&length[..5]).unwrap();
                server.write_all(&length[5..]).unwrap();
                for piece in value.chunks(70_001) {
                    server.write_all(piece).unwrap();
                }
            });
            let asked = StoreOperation {
                request: b"head".to_vec(),
                expects: Expects::Reply(Shape::Bytes),
            };
            let reply = link.perform(asked, &value, LONG).unwrap();
            let Some(Reply::Bytes(received)) = reply else {
                panic!("{reply:?}");
            };
            assert!(received == value);
        });
    }
}
