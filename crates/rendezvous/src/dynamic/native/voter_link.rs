//! A voter's connection to another one: a thread that connects again and again, and sends.
//!
//! A frame for which there is no connection is dropped. Nothing is received over it but its end: the other voter has
//! a connection of its own.

use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::sync::mpsc::TryRecvError;
use std::time::{Duration, Instant};

use rdzv_core::endpoint::Endpoint;
use rdzv_event::{Mailbox, Sender, mailbox, poll};
use rdzv_rendezvous_proto::voter::ATTEMPT;
use rdzv_store::resolve;
use rdzv_trust::{Channel, Credentials};
use rustix::event::{PollFd, PollFlags};

use super::probe::{Found, ProbeError, probe, write_all};
use super::search::watch_closely;

/// Time between two attempts to connect, at first and at most.
const RETRY: Duration = Duration::from_millis(10);
const RETRY_AT_MOST: Duration = Duration::from_millis(250);

/// The sending side of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct VoterLink(Sender<Command>);

enum Command {
    /// The first frame of every connection from here on; sent on the one that there is, too.
    Greet(Vec<u8>),
    Send(Vec<u8>),
}

impl VoterLink {
    pub(super) fn start(peer: Endpoint, credentials: Credentials) -> io::Result<Self> {
        let (sender, commands) = mailbox()?;
        let thread = Thread {
            peer,
            credentials,
            commands,
            greeting: Vec::new(),
            refused: None,
        };
        std::thread::Builder::new()
            .name("rdzv-voter-link".to_owned())
            .spawn(move || thread.run())?;
        Ok(Self(sender))
    }

    pub(super) fn greet(&self, frame: Vec<u8>) {
        self.0.send(Command::Greet(frame));
    }

    pub(super) fn send(&self, frame: Vec<u8>) {
        self.0.send(Command::Send(frame));
    }
}

struct Thread {
    peer: Endpoint,
    credentials: Credentials,
    commands: Mailbox<Command>,
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
                Err(ProbeError::Other(reason)) => why = reason,
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
        loop {
            let mut sources = [
                PollFd::new(&self.commands, PollFlags::IN),
                PollFd::from_borrowed_fd(channel.stream().as_fd(), PollFlags::IN),
            ];
            if poll(&mut sources, None).is_err() {
                return Ok(());
            }
            let is_readable = !sources[1].revents().is_empty();
            let mut sent = Ok(());
            self.receive(|frame| {
                sent = write_all(&mut channel, frame, ATTEMPT);
                match &sent {
                    Ok(()) => Ok(()),
                    Err(_) => Err(()),
                }
            })?;
            if sent.is_err() || is_readable && has_ended(&mut channel) {
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
            if send(&frame).is_err() {
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
