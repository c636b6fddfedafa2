//! Connection of a voter to another one, as a task that reconnects repeatedly.
//!
//! Between attempts to connect, frames are dropped. The link only sends; it receives nothing but
//! the end of the stream, because the other voter has a separate connection. The voter writes
//! directly to a connection with free buffer space and an empty queue, so that a frame wakes no
//! task.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rdzv_core::endpoint::Endpoint;
use rdzv_lock::Mutex;
use rdzv_store::resolve;
use rdzv_trust::{Channel, Credentials};
use rdzv_voters::ATTEMPT;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::time::timeout;

use super::search::watch_closely;
use crate::dynamic::probe::{Found, ProbeError, probe, write_all};
use crate::runtime::{Task, blocking, spawn};

/// First pause between two attempts to connect.
const RETRY: Duration = Duration::from_millis(10);
/// Longest pause between two attempts to connect.
const RETRY_AT_MOST: Duration = Duration::from_millis(250);

/// Sending side of the task, which ends when this value is dropped.
#[derive(Debug)]
pub(super) struct VoterLink {
    frames: UnboundedSender<Frame>,
    shared: Arc<Shared>,
    task: Task,
}

/// Frame, or the rest of one, that the task sends.
struct Frame {
    bytes: Vec<u8>,
    /// `true` for the first frame of all later connections.
    ///
    /// The task also sends it on the present connection.
    is_greeting: bool,
    _waiting: Waiting,
}

/// State that both sides of a link share.
#[derive(Debug, Default)]
struct Shared {
    /// Connection, once its greeting is sent.
    channel: Mutex<Option<Channel>>,
    /// Number of frames that the task must send before any other.
    waiting: AtomicUsize,
}

/// Guard that counts a frame while it waits.
struct Waiting(Arc<Shared>);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Shared {
    /// Writes what the connection accepts without a wait; returns its length.
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
                // The task waits for space, or finds the connection broken.
                Err(_) => break,
            }
        }
        written
    }

    fn with_channel<T>(&self, act: impl FnOnce(&mut Channel) -> io::Result<T>) -> io::Result<T> {
        let mut channel = self.channel.lock();
        channel
            .as_mut()
            .map_or_else(|| Err(io::ErrorKind::NotConnected.into()), act)
    }
}

impl VoterLink {
    pub(super) fn start(peer: &str, credentials: &Credentials) -> io::Result<Self> {
        let peer = Endpoint::parse(peer, 0);
        let peer = peer.map_err(|error| io::Error::other(error.to_string()))?;
        let (sender, frames) = unbounded_channel();
        let shared = Arc::new(Shared::default());
        let link = Link {
            peer,
            credentials: credentials.clone(),
            frames,
            shared: Arc::clone(&shared),
            greeting: Vec::new(),
            refused: None,
        };
        Ok(Self {
            frames: sender,
            shared,
            task: spawn(link.run())?,
        })
    }

    pub(super) fn greet(&self, frame: Vec<u8>) {
        self.queue(frame, true);
    }

    pub(super) fn send(&self, mut frame: Vec<u8>) {
        let written = self.shared.write_now(&frame);
        if written < frame.len() {
            self.queue(frame.split_off(written), false);
        }
    }

    fn queue(&self, bytes: Vec<u8>, is_greeting: bool) {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        let _the_task_has_panicked = self.frames.send(Frame {
            bytes,
            is_greeting,
            _waiting: Waiting(Arc::clone(&self.shared)),
        });
    }
}

impl Drop for VoterLink {
    fn drop(&mut self) {
        self.task.cancel();
    }
}

struct Link {
    peer: Endpoint,
    credentials: Credentials,
    frames: UnboundedReceiver<Frame>,
    shared: Arc<Shared>,
    greeting: Vec<u8>,
    /// Reason of the latest refusal that was logged.
    refused: Option<String>,
}

impl Link {
    async fn run(mut self) {
        let mut retry = RETRY;
        loop {
            let (peer, credentials) = (self.peer.clone(), self.credentials.clone());
            match blocking(move || connect(&peer, &credentials)).await {
                Ok(channel) => {
                    self.refused = None;
                    if let Err(error) = self.serve(channel).await {
                        tracing::debug!(
                            peer = %self.peer, %error,
                            "a connection to another voter failed"
                        );
                    }
                    // The rest of a frame is useless on the next connection.
                    *self.shared.channel.lock() = None;
                    retry = RETRY;
                }
                Err(error) => self.report(error),
            }
            // Frames for a lost connection are useless on the next one.
            let _the_time_is_over =
                timeout(retry, async { while self.next().await.is_some() {} }).await;
            retry = (retry * 2).min(RETRY_AT_MOST);
        }
    }

    /// Warns of a refusal, and again when the reason changes.
    fn report(&mut self, error: ProbeError) {
        match error {
            ProbeError::Refused(why) if self.refused.as_ref() != Some(&why) => {
                tracing::warn!("cannot authenticate with the voter at {}: {why}", self.peer);
                self.refused = Some(why);
            }
            why => tracing::debug!(peer = %self.peer, %why, "no connection to another voter"),
        }
    }

    /// Returns the next frame to send; `None` after the sending side is dropped.
    async fn next(&mut self) -> Option<Frame> {
        let frame = self.frames.recv().await?;
        if frame.is_greeting {
            self.greeting.clone_from(&frame.bytes);
        }
        Some(frame)
    }

    /// Sends frames until the connection ends.
    async fn serve(&mut self, mut channel: Channel) -> io::Result<()> {
        let socket = TcpStream::from_std(channel.stream().try_clone()?)?;
        let greeting = &self.greeting;
        write_all(&socket, greeting, ATTEMPT, |bytes| channel.write(bytes)).await?;
        let shared = Arc::clone(&self.shared);
        *shared.channel.lock() = Some(channel);
        tokio::select! {
            ended = end(&shared, &socket) => ended,
            sent = self.send_on(&socket) => sent,
        }
    }

    async fn send_on(&mut self, socket: &TcpStream) -> io::Result<()> {
        while let Some(frame) = self.next().await {
            write_all(socket, &frame.bytes, ATTEMPT, |bytes| {
                self.shared.with_channel(|channel| channel.write(bytes))
            })
            .await?;
        }
        Ok(())
    }
}

/// Waits for the end of the stream, on which only TLS sends data.
async fn end(shared: &Shared, socket: &TcpStream) -> io::Result<()> {
    let mut buffer = [0; 256];
    let mut read = || shared.with_channel(|channel| channel.read(&mut buffer));
    while socket.async_io(Interest::READABLE, &mut read).await? > 0 {}
    Ok(())
}

fn connect(peer: &Endpoint, credentials: &Credentials) -> Result<Channel, ProbeError> {
    let addresses = resolve(&peer.host, peer.port, Some(ATTEMPT))?;
    let mut why = ProbeError::Other("its name has no address".to_owned());
    for address in addresses {
        match probe(address, ATTEMPT, credentials) {
            Ok(Found::Voter(channel) | Found::Coordinator(channel)) => {
                watch_closely(&channel)?;
                channel.stream().set_nonblocking(true)?;
                return Ok(channel);
            }
            Ok(Found::Store) => {
                why = ProbeError::Other("a store that is not a voter answered".to_owned());
            }
            Err(error) => why = error,
        }
    }
    Err(why)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

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
        let peer = listener.local_addr().unwrap().to_string();
        let link = VoterLink::start(&peer, &Credentials::default()).unwrap();
        (listener, link)
    }

    fn read(stream: &mut TcpStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits until the voter may write to the connection.
    fn await_connection(link: &VoterLink) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while link.shared.channel.lock().is_none()
            || link.shared.waiting.load(Ordering::Acquire) > 0
        {
            assert!(Instant::now() < deadline);
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_frame_wakes_no_task_if_the_connection_has_room() {
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
        // More than the kernel buffers while nothing reads.
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
            let deadline = Instant::now() + Duration::from_secs(20);
            while link.shared.channel.lock().is_some() {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
            // No process would receive it.
            assert_eq!(link.shared.write_now(b"lost"), 0);
        }
    }
}
