//! Listener to which other workers connect.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use rdzv_event::{EventFlags, Poller, Timer};
use rdzv_rpc_proto::frame::MAGIC;
use rdzv_shm::pass;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::connect::{WELCOME, near_carrier, tcp_carrier, tls_carrier, turn_away};
use super::error::TransportError;
use super::options::TransportOptions;
use super::peer_address::{PeerAddress, host_identity};
use super::pending::{Pending, Source};
use super::socket::Socket;
use super::tls::TlsSession;
use super::unix::{self, Greeting};
use super::{Carrier, tcp};

/// Maximum number of connected peers that have not completed the greeting.
/// One more peer evicts another one, so silent peers do not block new ones.
const MOST_UNAUTHENTICATED: usize = 128;

/// Maximum number of such peers from one source.
const MOST_OF_ONE: usize = 64;

/// Maximum number of peers that one call accepts per socket.
/// The limit keeps a flood of peers from delaying the caller.
const AT_ONCE: usize = 32;

/// Tokens of the events of the three descriptors; pending peers follow.
const TCP: u64 = 0;
const UNIX: u64 = 1;
const TIMER: u64 = 2;
const FIRST_UNAUTHENTICATED: u64 = 3;

/// Endpoint of this worker to which others connect.
///
/// One descriptor becomes readable when there is work. The owner of the listener then calls
/// [`accept`](Self::accept) until that returns `None`. No call ever waits. A peer that sends
/// nonsense is dropped immediately, and a silent peer at its deadline or when others need its slot.
pub struct Listener {
    tcp: TcpListener,
    unix: Option<(UnixListener, String)>,
    options: TransportOptions,
    /// Poller of all descriptors.
    watched: Poller,
    timer: Timer,
    /// Peers in order of arrival; the first peer has the earliest deadline.
    unauthenticated: Pending<Unauthenticated>,
    outcomes: VecDeque<Result<Carrier, TransportError>>,
    /// Closed for a moment when no descriptor is left, to reject a waiting peer.
    spare: Option<File>,
}

/// A connected peer that has not completed the steps before the first frame.
struct Unauthenticated {
    peer: String,
    deadline: Instant,
    stage: Stage,
}

enum Stage {
    Unix(Greeting),
    Tls(Box<TlsSession>),
}

impl Stage {
    fn socket(&self) -> &OwnedFd {
        match self {
            Self::Unix(greeting) => greeting.socket(),
            Self::Tls(session) => &session.stream().0,
        }
    }
}

impl Listener {
    /// Starts to listen; TCP peers connect to this address.
    ///
    /// # Errors
    ///
    /// [`TransportError::System`] if an address or a name is not available.
    pub fn new(address: IpAddr, options: TransportOptions) -> Result<Self, TransportError> {
        let tcp = tcp::listen(SocketAddr::new(address, options.port))?;
        let unix = options.unix.then(unix::listen).transpose()?;
        let broken = || TransportError::system("watch for connections");
        let watched = Poller::new().map_err(broken())?;
        let timer = Timer::new().map_err(broken())?;
        let watch = |descriptor: BorrowedFd<'_>, token| {
            let added = watched.add(descriptor, token, EventFlags::IN);
            added.map_err(broken())
        };
        watch(tcp.as_fd(), TCP)?;
        watch(timer.as_fd(), TIMER)?;
        if let Some((listener, _)) = &unix {
            watch(listener.as_fd(), UNIX)?;
        }
        Ok(Self {
            tcp,
            unix,
            options,
            watched,
            timer,
            unauthenticated: Pending::new(MOST_UNAUTHENTICATED, MOST_OF_ONE, FIRST_UNAUTHENTICATED),
            outcomes: VecDeque::new(),
            spare: spare(),
        })
    }

    /// Returns the address at which others reach this worker.
    ///
    /// If the worker listens at all addresses, the caller must replace the address by a reachable
    /// one.
    ///
    /// # Errors
    ///
    /// [`TransportError::System`] if the system does not report the address.
    pub fn peer_address(&self) -> Result<PeerAddress, TransportError> {
        let address = self.tcp.local_addr();
        Ok(PeerAddress {
            host: host_identity(),
            process: std::process::id(),
            address: address.map_err(TransportError::system("get the address"))?,
            tls: self.options.tls.is_some(),
            unix: self.unix.as_ref().map(|(_, name)| name.clone()),
        })
    }

    /// Returns a descriptor that becomes readable when there is work.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    /// Returns the next peer that is ready for frames, if there is one.
    ///
    /// # Errors
    ///
    /// Returns a failure of one peer or of the system, for the log. The listener continues.
    pub fn accept(&mut self) -> Result<Option<Carrier>, TransportError> {
        if self.outcomes.is_empty() {
            self.advance()?;
        }
        self.outcomes.pop_front().transpose()
    }

    /// `true` if [`accept`](Self::accept) has an outcome that is not signalled.
    pub(crate) fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Adds an outcome, which the descriptor does not signal.
    #[cfg(test)]
    pub(crate) fn push_outcome(&mut self, outcome: Result<Carrier, TransportError>) {
        self.outcomes.push_back(outcome);
    }

    fn advance(&mut self) -> Result<(), TransportError> {
        let mut events = Vec::with_capacity(AT_ONCE);
        let waited = self.watched.wait(&mut events, Some(Duration::ZERO));
        waited.map_err(TransportError::system("watch for connections"))?;
        for event in events {
            match event.data.u64() {
                TCP => self.take_in(Self::accept_tcp),
                UNIX => self.take_in(Self::accept_unix),
                TIMER => self.drop_late(),
                unauthenticated => self.listen_to(unauthenticated),
            }
        }
        Ok(())
    }

    /// Accepts the peers that wait at one of the sockets.
    fn take_in(&mut self, accept: fn(&mut Self) -> io::Result<()>) {
        for _ in 0..AT_ONCE {
            match accept(self) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let system = Errno::from_io_error(&error);
                    if matches!(system, Some(Errno::MFILE | Errno::NFILE)) {
                        self.turn_one_away();
                    }
                    let error = TransportError::system("accept a connection")(error);
                    self.outcomes.push_back(Err(error));
                    return;
                }
            }
        }
    }

    fn accept_tcp(&mut self) -> io::Result<()> {
        let (stream, from) = self.tcp.accept()?;
        stream.set_nonblocking(true)?;
        // This fails if the peer has already closed the connection, which a later read shows too.
        let _ = tcp::tune(&stream, self.options.heartbeat_limit);
        let socket = OwnedFd::from(stream);
        let peer = from.to_string();
        match &self.options.tls {
            None => {
                let carrier = tcp_carrier(socket, peer, "it connected over TCP".to_owned());
                self.outcomes.push_back(carrier);
            }
            Some(identity) => match TlsSession::acceptor(identity, Socket(socket)) {
                Ok(session) => {
                    self.admit(from.ip().into(), peer, Stage::Tls(Box::new(session)));
                }
                Err(reason) => self.refused(peer, reason),
            },
        }
        Ok(())
    }

    fn accept_unix(&mut self) -> io::Result<()> {
        let Some((listener, _)) = &self.unix else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true)?;
        let socket = OwnedFd::from(stream);
        let who = pass::peer(&socket)?;
        let peer = unix::describe(who);
        match unix::check_user(who, &self.options) {
            Ok(()) => {
                let source = Source::Process(who.process);
                self.admit(source, peer, Stage::Unix(Greeting::new(socket)));
            }
            Err(reason) => {
                turn_away(&socket, &reason);
                self.refused(peer, reason);
            }
        }
        Ok(())
    }

    /// Accepts and closes one waiting peer, because no descriptor is left.
    /// Otherwise the poller would report the peer again and again.
    fn turn_one_away(&mut self) {
        self.spare = None;
        let waiting = self.tcp.accept().map(|_| ());
        if let (Err(_), Some((listener, _))) = (waiting, &self.unix) {
            // The peer, if there is one, is closed immediately.
            let _ = listener.accept();
        }
        self.spare = spare();
    }

    /// Starts the steps before the first frame for a peer.
    fn admit(&mut self, source: Source, peer: String, stage: Stage) {
        if let Some(silent) = self.unauthenticated.make_room(source) {
            let count = self.unauthenticated.len();
            let reason = format!("it did not identify itself, like {count} other peers");
            self.refused(silent.peer, reason);
        }
        let number = self.unauthenticated.insert(
            source,
            Unauthenticated {
                peer,
                deadline: Instant::now() + self.options.greeting,
                stage,
            },
        );
        let Some(unauthenticated) = self.unauthenticated.get_mut(number) else {
            return;
        };
        let watched = self
            .watched
            .add(unauthenticated.stage.socket(), number, EventFlags::IN);
        if let Err(error) = watched {
            self.unauthenticated.remove(number);
            let error = TransportError::system("watch a connection")(error);
            self.outcomes.push_back(Err(error));
        } else if self.unauthenticated.len() == 1 {
            self.set_timer();
        }
    }

    fn listen_to(&mut self, number: u64) {
        let Some(unauthenticated) = self.unauthenticated.get_mut(number) else {
            return;
        };
        let complete = match &mut unauthenticated.stage {
            Stage::Unix(greeting) => greeting.advance(),
            Stage::Tls(session) => shake_hands(session, &self.watched, number),
        };
        if complete == Ok(false) {
            return;
        }
        let Some(unauthenticated) = self.unauthenticated.remove(number) else {
            return;
        };
        // The new owner of the socket watches it with a different poller.
        self.watched.remove(unauthenticated.stage.socket());
        if let Err(reason) = complete {
            if let Stage::Unix(greeting) = &unauthenticated.stage {
                turn_away(greeting.socket(), &reason);
            }
            return self.refused(unauthenticated.peer, reason);
        }
        let peer = unauthenticated.peer;
        let outcome = match unauthenticated.stage {
            Stage::Unix(greeting) => match greeting.answer(&self.options) {
                Ok((socket, agreed)) => near_carrier(socket, agreed, peer),
                Err((socket, reason)) => {
                    turn_away(&socket, &reason);
                    return self.refused(peer, reason);
                }
            },
            Stage::Tls(session) => tls_carrier(*session, peer, "it connected over TCP".to_owned()),
        };
        self.outcomes.push_back(outcome);
    }

    /// Drops pending peers whose deadline has passed.
    fn drop_late(&mut self) {
        let now = Instant::now();
        while let Some((number, first)) = self.unauthenticated.first()
            && first.deadline <= now
            && let Some(unauthenticated) = self.unauthenticated.remove(number)
        {
            let waited = self.options.greeting;
            let reason = format!("it did not identify itself within {waited:?}");
            if let Stage::Unix(greeting) = &unauthenticated.stage {
                turn_away(greeting.socket(), &reason);
            }
            self.refused(unauthenticated.peer, reason);
        }
        self.set_timer();
    }

    /// Sets the timer to the first deadline, or disables it.
    fn set_timer(&self) {
        let first = self.unauthenticated.first();
        self.timer.set(first.map(|(_, unauthenticated)| {
            unauthenticated
                .deadline
                .saturating_duration_since(Instant::now())
        }));
    }

    fn refused(&mut self, peer: String, reason: String) {
        let error = TransportError::Refused { peer, reason };
        self.outcomes.push_back(Err(error));
    }
}

/// Continues a TLS handshake, and sends the welcome byte at its end.
fn shake_hands(session: &mut TlsSession, watched: &Poller, number: u64) -> Result<bool, String> {
    if is_plain(&session.stream().0) {
        let reason = "this worker requires TLS: give certificates to all workers or to none";
        turn_away(&session.stream().0, reason);
        return Err("it does not use TLS".to_owned());
    }
    let greeted = session.handshake().map_err(|error| error.to_string())?
        && match session.write(&[IoSlice::new(&[WELCOME])]) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(error) => return Err(error.to_string()),
        };
    // The poller watches for the event that the handshake needs next.
    let events = if session.wants_room() {
        EventFlags::OUT
    } else {
        EventFlags::IN
    };
    let changed = watched.modify(&session.stream().0, number, events);
    changed.map_err(|error| error.to_string())?;
    Ok(greeted)
}

/// `true` if a frame arrives where a TLS handshake should begin.
fn is_plain(socket: &OwnedFd) -> bool {
    let mut first = [0; 4];
    let peeked = recv(socket, &mut first, RecvFlags::PEEK);
    peeked.is_ok_and(|(count, _)| count == 4) && u32::from_le_bytes(first) == MAGIC
}

/// Opens a descriptor that can be closed when no other is left.
fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}
