//! A voter's connection to another one: a thread that connects again and again, and sends what has to wait for that.
//!
//! A frame for which there is no connection is dropped. Nothing is received over it but its end: the other voter has
//! a connection of its own. The voter itself writes to a connection that has room and for which nothing waits, so that a frame
//! wakes no thread.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rdzv_lock::Mutex;
use rdzv_store::resolve;
use rdzv_trust::{Channel, Credentials};
use rdzv_voters::ATTEMPT;
use rustix::event::{PollFd, PollFlags};

use super::probe::{Found, ProbeError, probe, write_all};
use super::search::watch_closely;

/// Time between two attempts to connect, at first and at most.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_AT_MOST: Duration = Duration::from_millis(250);

/// The sending side of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct VoterLink {
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

enum Command {
    /// The first frame of every connection from here on; sent on the one that there is, too.
    Greet(Vec<u8>),
    Send(Vec<u8>),
}

/// The part of a link that both sides use.
#[derive(Debug, Default)]
struct Shared {
    /// The connection, once its greeting is sent.
    channel: Mutex<Option<Channel>>,
    /// Commands that the thread has not dealt with; a frame may not overtake them.
    waiting: AtomicUsize,
}

impl Shared {
    /// Writes what the connection takes at once, and returns the number of bytes. It never waits, for the thread neither.
    fn write_now(&self, frame: &[u8]) -> usize {
        if self.waiting.load(Ordering::Acquire) > 0 {
            return 0;
        }
        let Some(mut channel) = self.channel.try_lock() else {
            return 0;
        };
        let Some(channel) = &mut *channel else {
            return 0;
        };
        let mut written = 0;
        while written < frame.len() {
            match channel.write(&frame[written..]) {
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // The thread waits for room, or finds the connection broken.
                Err(_) => break,
            }
        }
        written
    }
}

impl VoterLink {
    pub(super) fn start(peer: Endpoint, credentials: Credentials) -> io::Result<Self> {
        let (sender, commands) = mailbox()?;
        let shared = Arc::new(Shared::default());
        let thread = Thread {
            peer,
            credentials,
            commands,
            shared: Arc::clone(&shared),
            greeting: Vec::new(),
            refused: None,
        };
        std::thread::Builder::new()
            .name("rdzv-voter-link".to_owned())
            .spawn(move || thread.run())?;
        Ok(Self {
            commands: sender,
            shared,
        })
    }

    pub(super) fn greet(&self, frame: Vec<u8>) {
        self.queue(Command::Greet(frame));
    }

    pub(super) fn send(&self, mut frame: Vec<u8>) {
        let written = self.shared.write_now(&frame);
        if written < frame.len() {
            self.queue(Command::Send(frame.split_off(written)));
        }
    }

    fn queue(&self, command: Command) {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        self.commands.send(command);
    }
}

struct Thread {
    peer: Endpoint,
    credentials: Credentials,
    commands: Mailbox<Command>,
    shared: Arc<Shared>,
    greeting: Vec<u8>,
    /// Why one side refused the other, as people were told last.
    refused: Option<String>,
}

/// The other side of the mailbox is gone: the voter has ended.
struct Ended;

impl Thread {
    fn run(mut self) {
        let mut retry = RETRY;
        loop {
            // What was meant for a connection that is not there is of no use to the next one.
            if self.receive(|_| Ok(())).is_err() {
                return;
            }
            if let Ok(channel) = self.connect() {
                if self.serve(channel).is_err() {
                    return;
                }
                retry = RETRY;
            }
            if self.pause(retry).is_err() {
                return;
            }
            retry = (retry * 2).min(RETRY_AT_MOST);
        }
    }

    fn connect(&mut self) -> Result<Channel, String> {
        let (host, port) = (&self.peer.host, self.peer.port);
        let addresses = resolve(host, port, Some(ATTEMPT)).map_err(|error| error.to_string())?;
        let mut why = "its name has no address".to_owned();
        for address in addresses {
            match probe(address, ATTEMPT, &self.credentials) {
                Ok(Found::Voter(channel) | Found::Coordinator(channel)) => {
                    self.refused = None;
                    let prepared = watch_closely(&channel);
                    let prepared = prepared.and_then(|()| channel.stream().set_nonblocking(true));
                    return prepared
                        .map(|()| channel)
                        .map_err(|error| error.to_string());
                }
                Ok(Found::Store) => why = "there is a store that is no voter".to_owned(),
                Err(ProbeError::Refused(reason)) => {
                    self.tell_refusal(&reason);
                    why = reason;
                }
                Err(error) => why = error.to_string(),
            }
        }
        tracing::debug!(peer = %self.peer, why, "no connection to another voter");
        Err(why)
    }

    /// People are told at once, and again when the reason is another one: nobody else can help.
    fn tell_refusal(&mut self, why: &str) {
        if self.refused.as_deref() != Some(why) {
            tracing::warn!(
                "the process at {} is one of the voters and cannot be talked to: {why}",
                self.peer
            );
            self.refused = Some(why.to_owned());
        }
    }

    /// Sends until the connection ends.
    fn serve(&mut self, mut channel: Channel) -> Result<(), Ended> {
        if write_all(&mut channel, &self.greeting, ATTEMPT).is_err() {
            return Ok(());
        }
        let Ok(socket) = channel.stream().try_clone() else {
            return Ok(());
        };
        *self.shared.channel.lock() = Some(channel);
        let served = self.serve_on(&socket);
        // The rest of a frame is of no use to the next connection.
        *self.shared.channel.lock() = None;
        served
    }

    fn serve_on(&mut self, socket: &TcpStream) -> Result<(), Ended> {
        let shared = Arc::clone(&self.shared);
        loop {
            let mut sources = [
                PollFd::new(&self.commands, PollFlags::IN),
                PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
            ];
            if poll(&mut sources, None).is_err() {
                return Ok(());
            }
            let is_readable = !sources[1].revents().is_empty();
            let mut sent = Ok(());
            self.receive(|frame| {
                if let Some(channel) = &mut *shared.channel.lock() {
                    sent = write_all(channel, frame, ATTEMPT);
                }
                match &sent {
                    Ok(()) => Ok(()),
                    Err(_) => Err(()),
                }
            })?;
            if sent.is_err() || is_readable && shared.channel.lock().as_mut().is_none_or(has_ended)
            {
                return Ok(());
            }
        }
    }

    /// Takes what is in the mailbox, and passes frames on until one cannot be sent.
    fn receive(&mut self, mut send: impl FnMut(&[u8]) -> Result<(), ()>) -> Result<(), Ended> {
        self.commands.drain();
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(Ended),
            };
            let frame = match command {
                Command::Greet(frame) => {
                    self.greeting.clone_from(&frame);
                    frame
                }
                Command::Send(frame) => frame,
            };
            let sent = send(&frame);
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            if sent.is_err() {
                return Ok(());
            }
        }
    }

    /// Waits before the next attempt.
    fn pause(&mut self, time: Duration) -> Result<(), Ended> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            let mut source = [PollFd::new(&self.commands, PollFlags::IN)];
            // A signal ends the wait early.
            let _ = poll(&mut source, Some(left));
            self.receive(|_| Ok(()))?;
        }
    }
}

/// Whether the other side has closed. It sends nothing but what TLS says for itself.
fn has_ended(channel: &mut Channel) -> bool {
    let mut buffer = [0; 256];
    match channel.read(&mut buffer) {
        Ok(count) => count == 0,
        Err(error) => !matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;

    use rdzv_rendezvous_proto::coordinator::wire::PROBE_VOTER;
    use rdzv_store_proto::wire::request;

    use super::*;

    /// Accepts a connection, and answers as a voter does.
    fn accept(listener: &TcpListener) -> TcpStream {
        let (mut stream, _) = listener.accept().unwrap();
        let mut preamble = Vec::new();
        request::preamble(&mut preamble, 0);
        stream.read_exact(&mut preamble).unwrap();
        stream.write_all(&PROBE_VOTER.to_le_bytes()).unwrap();
        stream
    }

    fn started() -> (TcpListener, VoterLink) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let peer = Endpoint {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().unwrap().port(),
        };
        let link = VoterLink::start(peer, Credentials::default()).unwrap();
        (listener, link)
    }

    fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits until the voter may write to the connection.
    fn await_connection(link: &VoterLink) {
        let until = Instant::now() + Duration::from_secs(20);
        while link.shared.channel.lock().is_none()
            || link.shared.waiting.load(Ordering::Acquire) > 0
        {
            assert!(Instant::now() < until);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_frame_wakes_no_thread_if_the_connection_has_room() {
        let (listener, link) = started();
        link.greet(b"hello".to_vec());
        let mut stream = accept(&listener);
        assert_eq!(read(&mut stream, 5), b"hello");
        await_connection(&link);
        assert_eq!(link.shared.write_now(b"message"), 7);
        assert_eq!(read(&mut stream, 7), b"message");
    }

    #[test]
    fn frames_that_wait_for_room_are_not_overtaken() {
        let (listener, link) = started();
        link.greet(vec![0; 5]);
        let mut stream = accept(&listener);
        await_connection(&link);
        // More than the kernel takes while nobody reads.
        let frames = (1..=200_u8).map(|number| vec![number; 100_000]);
        frames.clone().for_each(|frame| link.send(frame));
        assert!(link.shared.waiting.load(Ordering::Acquire) > 0);
        assert_eq!(read(&mut stream, 5), [0; 5]);
        for frame in frames {
            assert!(read(&mut stream, frame.len()) == frame, "{}", frame[0]);
        }
    }

    #[test]
    fn a_new_connection_begins_with_the_greeting() {
        let (listener, link) = started();
        link.greet(b"hello".to_vec());
        for _ in 0..3 {
            let mut stream = accept(&listener);
            assert_eq!(read(&mut stream, 5), b"hello");
            await_connection(&link);
            link.send(b"message".to_vec());
            assert_eq!(read(&mut stream, 7), b"message");
            drop(stream);
            let until = Instant::now() + Duration::from_secs(20);
            while link.shared.channel.lock().is_some() {
                assert!(Instant::now() < until);
                std::thread::yield_now();
            }
            // Nobody is there who would get it.
            assert_eq!(link.shared.write_now(b"lost"), 0);
        }
    }
}
