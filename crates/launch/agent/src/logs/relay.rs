//! Process that reads the workers' terminals or pipes for the view.
//!
//! ```text
//!   worker ── pseudo-terminal ──► relay ── packets ──► agent (view) ──► console
//! ```
//!
//! The relay is a separate process, so that a worker continues while the agent does not run
//! (SIGSTOP, a debugger). The same holds while the agent waits for a console that is not read
//! (Ctrl-S, a stalled connection).
//!
//! About [`MOST_WAITING`] bytes of each stream can wait here. Beyond that the worker waits, as for
//! any terminal. After [`STALL`] without progress of the agent, the worker continues: up to
//! [`MOST_KEPT`] bytes wait, and the relay drops and counts older output.
//!
//! The relay reads pipes in the same way (`--no-pty`). If no process can be forked, or the process
//! was killed, a thread of the agent does this work.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rdzv_event::poll;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg,
    socketpair,
};

/// Limit on the waiting bytes of one stream while the agent takes output.
/// It is low, so that the console is not far behind.
const MOST_WAITING: usize = 64 << 10;

/// Limit on the waiting bytes of one stream while the agent takes no output.
const MOST_KEPT: usize = 256 << 10;

/// Time without progress of the agent after which the relay drops output.
const STALL: Duration = Duration::from_secs(5);

const PACKET: usize = 32 << 10;

/// Number of bytes that the relay reads from a stream per turn.
const TURN: usize = 64 << 10;

pub(super) type StreamId = u64;

#[derive(Debug)]
pub(crate) struct Relay {
    socket: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    Output(StreamId, &'a [u8]),
    /// Number of bytes of the stream that were dropped here.
    Dropped(StreamId, u64),
    /// End of a stream: all its writers have closed it.
    Ended(StreamId),
    /// Answer to [`Relay::drain`]: all earlier output has been passed on.
    Drained(u64),
}

const ADD: u8 = 1;
const DRAIN: u8 = 2;
const OUTPUT: u8 = 3;
const DROPPED: u8 = 4;
const ENDED: u8 = 5;
const DRAINED: u8 = 6;

/// Length of the kind and the number in front of each packet.
const HEAD: usize = 9;

fn head(kind: u8, number: u64) -> [u8; HEAD] {
    let mut head = [kind; HEAD];
    head[1..].copy_from_slice(&number.to_le_bytes());
    head
}

fn parse_head(packet: &[u8]) -> Option<(u8, u64, &[u8])> {
    let (kind, rest) = packet.split_first()?;
    let (number, payload) = rest.split_first_chunk()?;
    Some((*kind, u64::from_le_bytes(*number), payload))
}

impl Relay {
    /// Creates both ends of a relay; the caller must [serve](RelayEnd::serve) one.
    pub(crate) fn pair() -> io::Result<(Self, RelayEnd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        Ok((Self { socket: ours }, RelayEnd::new(theirs)))
    }

    pub(crate) fn start_thread() -> io::Result<Self> {
        let (relay, end) = Self::pair()?;
        thread::Builder::new()
            .name("relay".to_owned())
            .stack_size(256 << 10)
            .spawn(move || end.serve())?;
        Ok(relay)
    }

    /// Makes the relay read a stream.
    pub(super) fn add(&self, stream: StreamId, reader: BorrowedFd<'_>) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [reader];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let head = head(ADD, stream);
        sendmsg(
            &self.socket,
            &[IoSlice::new(&head)],
            &mut control,
            SendFlags::NOSIGNAL,
        )?;
        Ok(())
    }

    /// Requests an answer once all output until now has been passed on.
    pub(super) fn drain(&self, number: u64) {
        // Without a relay, the next call of `receive` fails.
        let _ = send(&self.socket, &head(DRAIN, number), SendFlags::NOSIGNAL);
    }

    /// Returns the next packet; `None` if there is none now.
    ///
    /// # Errors
    ///
    /// Returns an error if the relay has exited.
    pub(super) fn receive<'b>(&self, buffer: &'b mut Vec<u8>) -> io::Result<Option<Packet<'b>>> {
        buffer.resize(HEAD + PACKET, 0);
        let length = match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Err(Errno::PIPE.into()),
            Ok((_, length)) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        let (kind, number, payload) = parse_head(&buffer[..length]).ok_or(Errno::PROTO)?;
        Ok(Some(match kind {
            OUTPUT => Packet::Output(number, payload),
            DROPPED => {
                let bytes = payload.try_into().map_err(|_| Errno::PROTO)?;
                Packet::Dropped(number, u64::from_le_bytes(bytes))
            }
            ENDED => Packet::Ended(number),
            _ => Packet::Drained(number),
        }))
    }
}

impl AsFd for Relay {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

enum Waiting {
    Output(StreamId, Vec<u8>),
    Ended(StreamId),
    Drained(u64),
}

struct Stream {
    /// `None` if the stream has ended and the agent does not know it yet.
    reader: Option<OwnedFd>,
    waiting: usize,
    dropped: u64,
}

/// End in the process or thread that reads, with the state of the relay.
pub(crate) struct RelayEnd {
    agent: OwnedFd,
    streams: BTreeMap<StreamId, Stream>,
    queue: VecDeque<Waiting>,
    /// Last time at which the agent took something, or had nothing to take.
    progress: Instant,
    buffer: Vec<u8>,
}

struct Gone;

impl RelayEnd {
    fn new(agent: OwnedFd) -> Self {
        Self {
            agent,
            streams: BTreeMap::new(),
            queue: VecDeque::new(),
            progress: Instant::now(),
            buffer: vec![0; PACKET],
        }
    }

    /// Reads and passes on output until the agent exits.
    pub(crate) fn serve(mut self) {
        while self.turn().is_ok() {}
    }

    fn turn(&mut self) -> Result<(), Gone> {
        if self.queue.is_empty() {
            self.progress = Instant::now();
        }
        let stalled = self.progress.elapsed() >= STALL;
        let wanted = |stream: &Stream| stalled || stream.waiting < MOST_WAITING;
        let full = self.streams.values().any(|stream| !wanted(stream));
        let mut events = PollFlags::IN;
        if !self.queue.is_empty() {
            events |= PollFlags::OUT;
        }
        let readers: Vec<(StreamId, &OwnedFd)> = self
            .streams
            .iter()
            .filter(|(_, stream)| wanted(stream))
            .filter_map(|(id, stream)| Some((*id, stream.reader.as_ref()?)))
            .collect();
        let timeout = full.then(|| STALL.saturating_sub(self.progress.elapsed()).min(STALL / 2));
        let mut polled = vec![PollFd::new(&self.agent, events)];
        polled.extend(
            readers
                .iter()
                .map(|(_, reader)| PollFd::new(*reader, PollFlags::IN)),
        );
        let began = Instant::now();
        // After an error the relay exits, so that the loop does not become busy.
        poll(&mut polled, timeout).map_err(|_| Gone)?;
        let waited = began.elapsed();
        let command = polled[0]
            .revents()
            .intersects(PollFlags::IN | PollFlags::HUP);
        let ready: Vec<StreamId> = readers
            .iter()
            .zip(&polled[1..])
            .filter(|(_, polled)| !polled.revents().is_empty())
            .map(|((id, _), _)| *id)
            .collect();
        drop(polled);
        self.has_waited(waited);
        for id in ready {
            self.read(id, TURN);
        }
        self.send()?;
        if command {
            self.receive()?;
        }
        Ok(())
    }

    /// Adjusts the stall time after a wait in `poll`.
    ///
    /// If this process did not run, the agent perhaps did not run either, and could not take
    /// output. The machine was suspended or overloaded, for example.
    fn has_waited(&mut self, time: Duration) {
        self.progress += time.saturating_sub(STALL / 2);
    }

    /// Reads what a stream contains, up to about `most` bytes.
    fn read(&mut self, id: StreamId, most: usize) {
        let mut taken = 0;
        while let Some(stream) = self.streams.get_mut(&id)
            && let Some(reader) = &stream.reader
            && taken < most
        {
            match rustix::io::read(reader, &mut self.buffer[..]) {
                Ok(read) if read > 0 => {
                    stream.waiting += read;
                    taken += read;
                    let bytes = &self.buffer[..read];
                    match self.queue.back_mut() {
                        Some(Waiting::Output(last, waiting))
                            if *last == id && waiting.len() + read <= PACKET =>
                        {
                            waiting.extend_from_slice(bytes);
                        }
                        _ => self.queue.push_back(Waiting::Output(id, bytes.to_vec())),
                    }
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                // EIO: no process has the other side of a terminal open any more.
                Ok(_) | Err(_) => {
                    stream.reader = None;
                    self.queue.push_back(Waiting::Ended(id));
                }
            }
        }
        // So much output waits only if the agent takes none.
        while self
            .streams
            .get(&id)
            .is_some_and(|stream| stream.waiting > MOST_KEPT)
        {
            self.drop_oldest(id);
        }
    }

    fn drop_oldest(&mut self, id: StreamId) {
        let oldest = self
            .queue
            .iter()
            .position(|waiting| matches!(waiting, Waiting::Output(stream, _) if *stream == id));
        let dropped = match oldest.and_then(|at| self.queue.remove(at)) {
            Some(Waiting::Output(_, bytes)) => bytes.len(),
            _ => return,
        };
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.waiting -= dropped;
            stream.dropped += dropped as u64;
        }
    }

    /// Sends as much as the agent takes.
    fn send(&mut self) -> Result<(), Gone> {
        while let Some(waiting) = self.queue.front() {
            let (head_of_packet, payload) = match waiting {
                Waiting::Output(id, bytes) => (head(OUTPUT, *id), &bytes[..]),
                Waiting::Ended(id) => (head(ENDED, *id), &[][..]),
                Waiting::Drained(number) => (head(DRAINED, *number), &[][..]),
            };
            if let Waiting::Output(id, _) | Waiting::Ended(id) = waiting
                && let Some(stream) = self.streams.get_mut(id)
                && stream.dropped > 0
            {
                let dropped = stream.dropped.to_le_bytes();
                if !pass_on(&self.agent, &head(DROPPED, *id), &dropped)? {
                    return Ok(());
                }
                stream.dropped = 0;
            }
            if !pass_on(&self.agent, &head_of_packet, payload)? {
                return Ok(());
            }
            self.progress = Instant::now();
            match self.queue.pop_front() {
                Some(Waiting::Output(id, bytes)) => {
                    if let Some(stream) = self.streams.get_mut(&id) {
                        stream.waiting -= bytes.len();
                    }
                }
                Some(Waiting::Ended(id)) => drop(self.streams.remove(&id)),
                Some(Waiting::Drained(_)) | None => {}
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Gone> {
        loop {
            let mut head = [0; HEAD];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let slices = &mut [IoSliceMut::new(&mut head)];
            match recvmsg(&self.agent, slices, &mut control, flags) {
                Ok(received) if received.bytes == 0 => return Err(Gone),
                Ok(_) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(_) => return Err(Gone),
            }
            let descriptor = control.drain().find_map(|message| match message {
                RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
                _ => None,
            });
            let Some((kind, number, _)) = parse_head(&head) else {
                continue;
            };
            match (kind, descriptor) {
                (ADD, Some(reader)) => {
                    let stream = Stream {
                        reader: Some(reader),
                        waiting: 0,
                        dropped: 0,
                    };
                    self.streams.insert(number, stream);
                }
                (DRAIN, _) => {
                    let streams: Vec<StreamId> = self.streams.keys().copied().collect();
                    for id in streams {
                        self.read(id, TURN);
                    }
                    self.queue.push_back(Waiting::Drained(number));
                    self.send()?;
                }
                _ => {}
            }
        }
    }
}

/// Sends a packet; returns `false` if the agent takes none now.
fn pass_on(agent: &OwnedFd, head: &[u8], payload: &[u8]) -> Result<bool, Gone> {
    let packet = [IoSlice::new(head), IoSlice::new(payload)];
    loop {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let mut control = SendAncillaryBuffer::default();
        match sendmsg(agent, &packet, &mut control, flags) {
            Ok(_) => return Ok(true),
            Err(Errno::AGAIN) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(_) => return Err(Gone),
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::Timespec;

    use super::super::pty::{Ends, open_pipe};
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn stream(relay: &Relay, id: StreamId) -> OwnedFd {
        let Ends { reader, writer } = open_pipe().unwrap();
        relay.add(id, reader.as_fd()).unwrap();
        writer
    }

    /// Waits for packets until `done` returns `true`.
    fn receive(relay: &Relay, mut done: impl FnMut(Packet<'_>) -> bool) {
        let (mut buffer, deadline) = (Vec::new(), Instant::now() + LONG);
        loop {
            assert!(Instant::now() < deadline, "no packet");
            match relay.receive(&mut buffer).unwrap() {
                Some(packet) if done(packet) => return,
                Some(_) => {}
                None => {
                    poll(&mut [PollFd::new(relay, PollFlags::IN)], Some(LONG)).unwrap();
                }
            }
        }
    }

    #[test]
    fn output_comes_in_order_and_then_its_end() {
        let relay = Relay::start_thread().unwrap();
        let (one, two) = (stream(&relay, 1), stream(&relay, 2));
        rustix::io::write(&one, b"a").unwrap();
        rustix::io::write(&two, b"b").unwrap();
        relay.drain(7);
        let mut seen = Vec::new();
        receive(&relay, |packet| {
            match packet {
                Packet::Output(id, bytes) => seen.push((id, bytes.to_vec())),
                packet => return packet == Packet::Drained(7),
            }
            false
        });
        seen.sort();
        assert_eq!(seen, [(1, b"a".to_vec()), (2, b"b".to_vec())]);
        drop(one);
        receive(&relay, |packet| packet == Packet::Ended(1));
    }

    #[test]
    fn a_standstill_of_the_relay_is_no_stall_of_the_agent() {
        let (_relay, mut reader) = Relay::pair().unwrap();
        let hour = Duration::from_secs(3600);
        reader.progress -= STALL / 4 + hour;
        reader.has_waited(hour);
        assert!(reader.progress.elapsed() < STALL);
        reader.progress -= STALL / 2;
        reader.has_waited(STALL / 2);
        assert!(reader.progress.elapsed() >= STALL);
    }

    #[test]
    fn a_writer_goes_on_when_nobody_takes_its_output() {
        let relay = Relay::start_thread().unwrap();
        let writer = stream(&relay, 1);
        let (text, lines) = ([b'x'; 4095], 1000);
        for _ in 0..lines {
            let writable = &mut [PollFd::new(&writer, PollFlags::OUT)];
            let long = Timespec::try_from(LONG).unwrap();
            assert_eq!(rustix::event::poll(writable, Some(&long)), Ok(1));
            assert_eq!(rustix::io::write(&writer, &text), Ok(text.len()));
        }
        drop(writer);
        let (mut passed, mut dropped) = (0, 0);
        receive(&relay, |packet| {
            match packet {
                Packet::Output(1, bytes) => passed += bytes.len() as u64,
                Packet::Dropped(1, bytes) => dropped += bytes,
                packet => return packet == Packet::Ended(1),
            }
            false
        });
        assert!(dropped > 0);
        assert_eq!(passed + dropped, lines * text.len() as u64);
    }
}
