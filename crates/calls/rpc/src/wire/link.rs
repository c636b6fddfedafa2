//! A connection as such: two ends, the driver that waits for both, and what ended it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rdzv_lock::{Mutex, MutexGuard};
use rdzv_rpc_proto::frame::{Frame, Header, Limits};
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

/// The frames that are taken from one connection before another one has its turn.
const TURN: usize = 256;

const CLOSED: &str = "the worker has closed the connection: it has ended, or was killed";

/// The epoll set of an agent, with its connections.
pub(crate) type LinkPoller = Poller<dyn Endpoint>;

/// A connection, whichever side of it this is.
pub(crate) struct Link {
    id: LinkId,
    poller: Arc<LinkPoller>,
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
    /// Copies of the descriptors, so that waiting for one end needs no lock of it.
    readable: OwnedFd,
    writable: OwnedFd,
    /// Whether the driver waits for frames, as far as this side knows: it may be woken once more.
    armed: Mutex<bool>,
    /// What the second one is watched for.
    room: Readiness,
    /// Bytes that wait for room.
    unsent: AtomicUsize,
    /// `true` if frames are left untaken until the peer has taken what is there for it.
    paused: AtomicBool,
    ended: OnceLock<RpcError>,
    /// How the bytes travel, and why that way.
    pub(crate) kind: TransportKind,
    pub(crate) reason: String,
    /// The process at the other end, as the kernel knows it, if it is on this host.
    pub(crate) process: Option<Peer>,
    /// Shared memory of both processes, if there is any.
    pub(crate) leases: Option<Arc<Leases>>,
    /// Who is at the other end, as far as the transport can see.
    peer: String,
    /// If it may be another host.
    heart: Option<Heart>,
}

/// One side of a connection: what it makes of a frame, and of the end.
pub(crate) trait Endpoint: Send + Sync {
    fn link(&self) -> &Link;

    /// A frame has arrived.
    ///
    /// The caller holds the reader lock. May say how large frames may be from now on.
    fn take(self: Arc<Self>, frame: Frame) -> Option<Limits>;

    /// `true` if another frame may be taken.
    ///
    /// If not, none is until the peer has taken what is there for it.
    fn may_take(&self) -> bool {
        true
    }

    /// Frames are taken again.
    fn goes_on(self: Arc<Self>) {}

    /// Gives back shared memory of the peer that is not used any more.
    fn give_back(&self) -> Result<(), RpcError> {
        Ok(())
    }

    /// The connection is over; called once.
    fn lost(self: Arc<Self>, error: RpcError);
}

/// Whether there is more to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pumped {
    /// So many frames came, and then nothing.
    Idle(usize),
    /// The turn is over; there may be more.
    More,
    /// The peer has to take what is there for it before more is taken of it: the driver goes on
    /// then.
    Paused,
    /// The connection is over.
    Ended,
}

/// What a link is made of.
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
    /// Makes a link that nobody waits for yet.
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

    /// The descriptor that becomes readable when there is something to read.
    pub(crate) fn readable(&self) -> &OwnedFd {
        &self.readable
    }

    /// Why it is over, if it is.
    pub(crate) fn ended(&self) -> Option<&RpcError> {
        self.ended.get()
    }

    /// Bytes that wait for room.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.load(Ordering::Acquire)
    }

    /// From now on the driver [goes on](Endpoint::goes_on) when there is room, unless there is
    /// already: the caller looks once more.
    pub(crate) fn pause(&self) {
        self.paused.store(true, Ordering::Release);
        // The thread that makes room has the lock: it has seen the flag above, or the caller sees
        // the room.
        let writer = self.writer.lock();
        self.unsent.store(writer.unsent(), Ordering::Release);
    }

    /// `true` if something was paused, which is over then; says so once.
    pub(crate) fn resume(&self) -> bool {
        self.paused.swap(false, Ordering::AcqRel)
    }

    /// Takes the reader lock, unless another thread has it.
    pub(crate) fn try_reader(&self) -> Option<MutexGuard<'_, Reader>> {
        self.reader.try_lock()
    }

    /// The driver is not to wait for frames: somebody else does.
    pub(crate) fn disarm(&self) {
        let mut armed = self.armed.lock();
        if std::mem::take(&mut *armed) {
            // If it fails, the driver is woken once more than it needs to be.
            let _ = self.poller.disarm_frames(self.id, &self.readable);
        }
    }

    /// The driver was woken, and is not going to be again.
    ///
    /// Comes before it tries to take the reader lock: a thread that has the lock then, and gives it
    /// back, sees this and arms again.
    pub(crate) fn fired(&self) {
        *self.armed.lock() = false;
    }

    /// The driver is to wait for frames.
    ///
    /// The reader lock is free, or the thread that has it arms afterwards.
    fn arm(&self) -> io::Result<()> {
        let mut armed = self.armed.lock();
        if !std::mem::replace(&mut *armed, true) {
            self.poller.await_frames(self.id, &self.readable)?;
        }
        Ok(())
    }

    /// `true` if the other side has gone, noticed or not.
    pub(crate) fn is_hung_up(&self) -> bool {
        let mut descriptors = [PollFd::new(&self.readable, PollFlags::RDHUP)];
        let gone = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        self.ended().is_some()
            || rdzv_event::poll(&mut descriptors, Some(Duration::ZERO))
                .is_ok_and(|_| descriptors[0].revents().intersects(gone))
    }

    /// Frames are held back until [`let_go`](Self::let_go), to go out together.
    pub(crate) fn hold(&self) {
        self.writer.lock().hold();
    }

    /// Sends what was held back.
    pub(crate) fn let_go(&self) -> Result<(), RpcError> {
        let mut writer = self.writer.lock();
        let left = writer.let_go();
        self.after(writer, left)
    }

    /// Sends a frame; what does not fit is sent by the driver.
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

    /// Sends a last frame, and what was held back before it, as far as there is room: the
    /// connection is about to be closed.
    pub(crate) fn send_last(&self, header: &Header, body: &[u8]) {
        if self.ended().is_none() {
            let mut writer = self.writer.lock();
            // If it cannot be sent, the end of the connection says enough.
            let _ = writer.send(header, body, Vec::new());
            let _ = writer.flush();
        }
    }

    /// There is room again.
    pub(crate) fn flush(&self) -> Result<(), RpcError> {
        let mut writer = self.writer.lock();
        writer.awake();
        let left = writer.flush();
        self.after(writer, left)
    }

    /// Has the driver wait for room, if something is left to send.
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

    /// When to look whether the other host is there, if it may be another one.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.heart.as_ref().map(Heart::next)
    }

    /// Looks whether the other host is there.
    ///
    /// Says when to look next, or why the connection is over.
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
                format!("the connection was given up: {error}"),
            ),
        }
    }

    fn lost_by(&self, error: io::Error) -> RpcError {
        use io::ErrorKind::{
            BrokenPipe, ConnectionReset, HostUnreachable, NetworkUnreachable, TimedOut,
        };
        let text = match (error.kind(), &self.heart) {
            (BrokenPipe | ConnectionReset, _) => CLOSED.to_owned(),
            // The system has come to the same verdict.
            (TimedOut | HostUnreachable | NetworkUnreachable, Some(heart)) => {
                return self.vanished(heart.limit());
            }
            _ => format!("the connection failed: {error}"),
        };
        RpcError::new(RpcErrorKind::PeerLost, text)
    }

    fn vanished(&self, silent: Duration) -> RpcError {
        // What the peer has not got it is never to get: the calls are over. It fails only if the
        // connection is.
        let _ = sockopt::set_socket_linger(&self.readable, Some(Duration::ZERO));
        let limit = self.heart.as_ref().map_or(silent, Heart::limit);
        let text = format!(
            "nothing was heard of the host of {} for {:.1} s (heartbeat limit {} s): it has lost power, \
             or the network in between is cut. The next call connects anew; if the network is silent \
             for so long at times, raise `heartbeat_limit`",
            self.peer,
            silent.as_secs_f64(),
            limit.as_secs_f64()
        );
        RpcError::new(RpcErrorKind::PeerLost, text)
    }

    /// Notes why it is over; says whether this is news.
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

/// Has the driver look after a connection.
pub(crate) fn adopt<E: Endpoint + 'static>(endpoint: &Arc<E>) -> io::Result<()> {
    let link = endpoint.link();
    let adopted: Arc<dyn Endpoint> = Arc::clone(endpoint) as _;
    link.poller
        .adopt(link.id, (&link.readable, &link.writable), adopted)
}

/// Takes the frames that are there, for one turn.
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

/// Gives the reader lock back: from now on the driver waits for frames.
///
/// Takes those that came meanwhile.
pub(crate) fn rest<E: Endpoint + ?Sized>(endpoint: &Arc<E>, mut reader: MutexGuard<'_, Reader>) {
    loop {
        if reader.prepare_to_sleep() {
            // Armed when the reader lock is free: the driver, woken before that, would find it
            // taken and leave the frames to who has it. Who takes it meanwhile arms again; once too
            // often does no harm.
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

/// Takes no frames until the peer has taken what is there for it; false if it has meanwhile.
/// Nothing of what is sent may be held back.
pub(crate) fn pause<E: Endpoint + ?Sized>(endpoint: &Arc<E>) -> bool {
    endpoint.link().pause();
    // The thread that has resumed it goes on.
    !endpoint.may_take() || !endpoint.link().resume()
}

/// Ends the connection for this reason.
pub(crate) fn fail<E: Endpoint + ?Sized>(endpoint: &Arc<E>, error: RpcError) {
    if endpoint.link().end(&error) {
        Arc::clone(endpoint).lost(error);
    }
}
