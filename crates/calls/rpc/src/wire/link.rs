//! One connection: its reader, its writer, and the reason of its end.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rdzv_lock::{Mutex, MutexGuard};
use rdzv_rpc_proto::frame::{Frame, FrameLimits, Header};
use rdzv_rpc_proto::heartbeat::Rhythm;
use rdzv_shm::Leases;
use rdzv_shm::pass::Peer;
use rustix::event::{PollFd, PollFlags};
use rustix::net::sockopt;

use crate::error::{RpcError, RpcErrorKind};
use crate::transport::{Readiness, TransportKind};
use crate::wire::heartbeat::Heart;
use crate::wire::poller::{LinkId, Poller};
use crate::wire::reader::{Broken, Reader};
use crate::wire::writer::{Left, Part, Writer};

/// Maximum number of frames that one connection delivers per turn.
const TURN: usize = 256;

const CLOSED: &str = "the worker closed the connection: it has probably exited";

/// The epoll set of an agent and its connections.
pub(crate) type LinkPoller = Poller<dyn Endpoint>;

/// A connection, for the calling and the answering side.
pub(crate) struct Link {
    id: LinkId,
    poller: Arc<LinkPoller>,
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
    /// Duplicates of the descriptors, so that a wait for one end needs no lock.
    readable: OwnedFd,
    writable: OwnedFd,
    /// `true` if the driver waits for frames, as far as this side knows.
    /// The driver may still wake once more after this is `false`.
    armed: Mutex<bool>,
    /// Event on `writable` that signals room to send.
    room: Readiness,
    /// Number of bytes that wait for room.
    unsent: AtomicUsize,
    /// `true` if no frames are read until the peer has read its pending data.
    paused: AtomicBool,
    ended: OnceLock<RpcError>,
    /// Transport of the connection, and the reason for this choice.
    pub(crate) kind: TransportKind,
    pub(crate) reason: String,
    /// Process at the other end, as the kernel reports it; `None` over TCP.
    pub(crate) process: Option<Peer>,
    /// Memory that both processes share, if there is any.
    pub(crate) leases: Option<Arc<Leases>>,
    /// Description of the peer, as far as the transport knows it.
    peer: String,
    /// Heartbeat of the other host; `None` unless the transport is TCP.
    heart: Option<Heart>,
}

/// Owner of a connection: handles its frames and its end.
pub(crate) trait Endpoint: Send + Sync {
    fn link(&self) -> &Link;

    /// Handles a frame that has arrived.
    ///
    /// The caller holds the reader lock. The return value can change the size limits of later
    /// frames.
    fn take(self: Arc<Self>, frame: Frame) -> Option<FrameLimits>;

    /// `true` if the connection may read another frame.
    ///
    /// After `false`, no thread reads frames until the peer has read its pending data.
    fn may_take(&self) -> bool {
        true
    }

    /// Resumes work that was held during a pause.
    fn goes_on(self: Arc<Self>) {}

    /// Releases shared memory of the peer that is no longer used.
    fn give_back(&self) -> Result<(), RpcError> {
        Ok(())
    }

    /// Handles the end of the connection; called once.
    fn lost(self: Arc<Self>, error: RpcError);
}

/// Result of reading frames for one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// Number of frames that were read before no more was available.
    Idle(usize),
    /// The turn is over; more frames may be available.
    More,
    /// No more frames are read until the peer has read its pending data.
    /// The driver continues at that time.
    Paused,
    Ended,
}

pub(crate) struct Ends {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
    pub(crate) kind: TransportKind,
    pub(crate) reason: String,
    pub(crate) process: Option<Peer>,
    pub(crate) leases: Option<Arc<Leases>>,
    pub(crate) peer: String,
    pub(crate) rhythm: Rhythm,
}

impl Link {
    /// Creates a link that neither the driver nor another thread waits for yet.
    pub(crate) fn new(poller: Arc<LinkPoller>, mut ends: Ends) -> io::Result<Self> {
        let readable = ends.reader.half().descriptor().try_clone_to_owned()?;
        let writable = ends.writer.half().descriptor().try_clone_to_owned()?;
        let room = ends.writer.half().ready_when();
        let id = poller.new_id();
        let is_tcp = matches!(ends.kind, TransportKind::Tcp | TransportKind::TlsTcp);
        let heart = is_tcp.then(|| Heart::new(&readable, ends.rhythm));
        Ok(Self {
            id,
            leases: ends.leases,
            poller,
            reader: Mutex::new(ends.reader),
            writer: Mutex::new(ends.writer),
            readable,
            writable,
            armed: Mutex::new(false),
            room,
            unsent: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            ended: OnceLock::new(),
            kind: ends.kind,
            reason: ends.reason,
            process: ends.process,
            peer: ends.peer,
            heart: heart.transpose()?,
        })
    }

    pub(crate) fn id(&self) -> LinkId {
        self.id
    }

    pub(crate) fn poller(&self) -> &Arc<LinkPoller> {
        &self.poller
    }

    /// Returns the descriptor that becomes readable when data arrives.
    pub(crate) fn readable(&self) -> &OwnedFd {
        &self.readable
    }

    /// Returns the reason why the connection is over, if it is over.
    pub(crate) fn ended(&self) -> Option<&RpcError> {
        self.ended.get()
    }

    /// Returns the number of bytes that wait for room.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Acquire)
    }

    /// Makes the driver call [`Endpoint::goes_on`] when there is room to send.
    /// There may be room already, so the caller must check once more.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::Release);
        // The thread that makes room holds this lock. Either it has seen the flag above, or the
        // caller sees the room.
        let writer = self.writer.lock();
        self.unsent.store(writer.unsent(), Ordering::Release);
    }

    /// Ends a pause. Returns `true` once per pause, to one caller.
    pub(crate) fn resume(&self) -> bool {
        self.paused.swap(false, Ordering::AcqRel)
    }

    /// Acquires the reader lock, unless another thread holds it.
    pub(crate) fn try_reader(&self) -> Option<MutexGuard<'_, Reader>> {
        self.reader.try_lock()
    }

    /// Stops the driver's wait for frames, because another thread reads them.
    pub(crate) fn disarm(&self) {
        let mut armed = self.armed.lock();
        if std::mem::take(&mut *armed) {
            // If this fails, the driver wakes up once more than necessary.
            let _ = self.poller.disarm_frames(self.id, &self.readable);
        }
    }

    /// Records that the driver has woken up and is no longer armed.
    ///
    /// The driver calls this before it tries to acquire the reader lock. A thread that holds the
    /// lock at that time arms the driver again when it releases the lock.
    pub(crate) fn fired(&self) {
        *self.armed.lock() = false;
    }

    /// Makes the driver wait for frames.
    ///
    /// The reader lock must be free, or the thread that holds it must call this afterwards.
    fn arm(&self) -> io::Result<()> {
        let mut armed = self.armed.lock();
        if !std::mem::replace(&mut *armed, true) {
            self.poller.await_frames(self.id, &self.readable)?;
        }
        Ok(())
    }

    /// `true` if the connection has ended, or the socket shows a hang-up.
    pub(crate) fn is_hung_up(&self) -> bool {
        // With shared memory, `readable` is a poller, which does not show the end of the socket.
        let socket = self.leases.as_ref().map(|leases| leases.socket());
        let socket = socket.unwrap_or(&self.readable);
        let mut descriptors = [PollFd::new(socket, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        self.ended().is_some()
            || rdzv_event::poll(&mut descriptors, Some(Duration::ZERO))
                .is_ok_and(|_| descriptors[0].revents().intersects(gone))
    }

    /// Holds frames back until [`let_go`](Self::let_go), to send them together.
    pub(crate) fn hold(&self) {
        self.writer.lock().hold();
    }

    /// Sends the frames that were held back.
    pub(crate) fn let_go(&self) -> Result<(), RpcError> {
        let mut writer = self.writer.lock();
        let left = writer.let_go();
        self.after(writer, left)
    }

    /// Sends a frame; the driver later sends the part that does not fit now.
    pub(crate) fn send(
        &self,
        header: &Header,
        body: &[u8],
        parts: Vec<Part>,
    ) -> Result<(), RpcError> {
        if let Some(error) = self.ended() {
            return Err(error.clone());
        }
        let mut writer = self.writer.lock();
        if writer.is_holding() {
            let sent = writer.send(header, body, parts);
            self.unsent.store(writer.unsent(), Ordering::Release);
            return sent.map(drop).map_err(|error| self.lost_by(error));
        }
        let left = writer.send(header, body, parts);
        self.after(writer, left)
    }

    /// Sends a last frame before the connection is closed.
    /// Frames that were held back go first, as far as there is room.
    pub(crate) fn send_last(&self, header: &Header, body: &[u8]) {
        if self.ended().is_none() {
            let mut writer = self.writer.lock();
            // If sending fails, the peer still sees the end of the connection.
            let _ = writer.send(header, body, Vec::new());
            let _ = writer.flush();
        }
    }

    /// Sends more data, now that there is room.
    pub(crate) fn flush(&self) -> Result<(), RpcError> {
        let mut writer = self.writer.lock();
        writer.awake();
        let left = writer.flush();
        self.after(writer, left)
    }

    /// Makes the driver wait for room, if data is left to send.
    fn after(
        &self,
        mut writer: MutexGuard<'_, Writer>,
        mut left: io::Result<Left>,
    ) -> Result<(), RpcError> {
        while matches!(left, Ok(Left::Some)) && !writer.is_asleep() {
            if writer.prepare_to_sleep() {
                self.unsent.store(writer.unsent(), Ordering::Release);
                drop(writer);
                let waits = self.poller.await_room(self.id, &self.writable, self.room);
                return waits.map_err(|error| self.lost_by(error));
            }
            left = writer.flush();
        }
        self.unsent.store(writer.unsent(), Ordering::Release);
        left.map(drop).map_err(|error| self.lost_by(error))
    }

    /// Returns the time of the next heartbeat check, if there is a heartbeat.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.heart.as_ref().map(Heart::next)
    }

    /// Checks whether the other host still answers.
    ///
    /// Returns the time of the next check, or the reason why the connection is over.
    pub(crate) fn look(&self, now: Instant) -> Result<Option<Instant>, RpcError> {
        let heart = self.heart.as_ref();
        let look = heart.map(|heart| heart.look(&self.readable, now));
        look.transpose().map_err(|silent| self.vanished(silent))
    }

    fn broken_by(&self, broken: Broken) -> RpcError {
        match broken {
            Broken::Closed => RpcError::new(RpcErrorKind::PeerLost, CLOSED),
            Broken::Failed(error) => self.lost_by(error),
            Broken::Nonsense(error) => RpcError::new(
                RpcErrorKind::Protocol,
                format!("the connection was closed: {error}"),
            ),
        }
    }

    fn lost_by(&self, error: io::Error) -> RpcError {
        use io::ErrorKind::{
            BrokenPipe, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
        };
        let text = match (error.kind(), &self.heart) {
            (BrokenPipe | ConnectionReset, _) => CLOSED.to_owned(),
            // The kernel has found that the host is lost.
            (TimedOut | HostUnreachable | NetworkUnreachable, Some(heart)) => {
                return self.vanished(heart.limit());
            }
            _ => format!("the connection failed: {error}"),
        };
        RpcError::new(RpcErrorKind::PeerLost, text)
    }

    fn vanished(&self, silent: Duration) -> RpcError {
        // The kernel discards unsent data, because the calls have ended. This call fails only if
        // the connection has already ended.
        let _ = sockopt::set_socket_linger(&self.readable, Some(Duration::ZERO));
        let limit = self.heart.as_ref().map_or(silent, Heart::limit);
        let text = format!(
            "no message from the host of {} for {:.1} s (heartbeat limit {} s): the host lost \
             power, or the network is down. The next call connects again; if the network is often \
             silent for this long, raise `heartbeat_limit`",
            self.peer,
            silent.as_secs_f64(),
            limit.as_secs_f64()
        );
        RpcError::new(RpcErrorKind::PeerLost, text)
    }

    /// Records why the connection is over. Returns `true` for the first reason.
    fn end(&self, error: &RpcError) -> bool {
        let news = self.ended.set(error.clone()).is_ok();
        if news {
            self.poller
                .forget(self.id, [&self.readable, &self.writable]);
            self.writer.lock().half().close();
        }
        news
    }
}

/// Registers a connection with the driver.
pub(crate) fn adopt<E: Endpoint + 'static>(endpoint: &Arc<E>) -> io::Result<()> {
    let link = endpoint.link();
    let adopted: Arc<dyn Endpoint> = Arc::clone(endpoint) as _;
    link.poller
        .adopt(link.id, (&link.readable, &link.writable), adopted)
}

/// Reads the frames that are available, for at most one turn.
pub(crate) fn pump<E: Endpoint + ?Sized>(endpoint: &Arc<E>, reader: &mut Reader) -> Pumped
where
    Arc<E>: Clone,
{
    for count in 0..TURN {
        if endpoint.link().ended().is_some() {
            return Pumped::Ended;
        }
        if !endpoint.may_take() {
            return Pumped::Paused;
        }
        match reader.next() {
            Ok(Some(frame)) => {
                if let Some(limits) = Arc::clone(endpoint).take(frame) {
                    reader.set_limits(limits);
                }
            }
            Ok(None) => return Pumped::Idle(count),
            Err(broken) => {
                fail(endpoint, endpoint.link().broken_by(broken));
                return Pumped::Ended;
            }
        }
    }
    Pumped::More
}

/// Releases the reader lock, and makes the driver wait for frames.
///
/// Before that, this reads the frames that have arrived in the meantime.
pub(crate) fn rest<E: Endpoint + ?Sized>(endpoint: &Arc<E>, mut reader: MutexGuard<'_, Reader>) {
    loop {
        if reader.prepare_to_sleep() {
            // The reader lock is released before the driver is armed. A driver that woke up earlier
            // would find the lock held and leave the frames to its holder. A thread that acquires
            // the lock now arms the driver again; arming twice does no harm.
            drop(reader);
            let link = endpoint.link();
            if link.ended().is_none()
                && let Err(error) = link.arm()
            {
                fail(endpoint, link.lost_by(error));
            }
            return;
        }
        reader.awake();
        match pump(endpoint, &mut reader) {
            Pumped::Ended => return,
            Pumped::Paused if pause(endpoint) => return,
            _ => {}
        }
    }
}

/// Stops reading frames until the peer has read its pending data.
/// Returns `false` if the peer has already read it. No frames may be held back for sending.
pub(crate) fn pause<E: Endpoint + ?Sized>(endpoint: &Arc<E>) -> bool {
    endpoint.link().pause();
    // If another thread has ended the pause, that thread continues.
    !endpoint.may_take() || !endpoint.link().resume()
}

pub(crate) fn fail<E: Endpoint + ?Sized>(endpoint: &Arc<E>, error: RpcError) {
    if endpoint.link().end(&error) {
        Arc::clone(endpoint).lost(error);
    }
}
