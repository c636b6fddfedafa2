//! How bytes get from one worker to another: TCP, TLS over TCP, Unix sockets, shared memory.
//!
//! A worker listens ([`Listener`]) and publishes where ([`PeerAddress`]). Another one connects
//! ([`connect()`]), and each of the two gets a [`Carrier`]: two halves that carry bytes and know
//! nothing of frames. Which kind of carrier it is follows from where the two are, and the carrier
//! says why.
//!
//! ```text
//!  connect(contact) ── same boot id? ── yes ─► Unix socket ── rings accepted? ── yes ─► Shared
//!                          │                      │ cannot be reached     └── no ──► Unix
//!                          └── no ──► TCP ◄───────┘
//!                                      └── certificates given? ── yes ─► TlsTcp, else Tcp
//! ```
//!
//! Whatever has to be said before the first frame (the TLS handshake, the offer of rings) is over
//! when a carrier is handed out. A peer that is refused at that stage is told why in a frame of the
//! kind `GoAway`, or by a TLS alert.
//!
//! Reading order: the traits here, [`peer_address`], [`options`], [`connect`](mod@connect) and
//! [`listener`]; then the kinds: `socket`, `tcp`, `unix`, `shared`, `tls`, [`oneself`]. The proof
//! that two workers are of one job is in `rdzv-trust`.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use rdzv_shm::Leases;
pub use rdzv_shm::pass::Peer;

pub mod connect;
mod error;
pub mod listener;
pub mod oneself;
pub mod options;
pub mod peer_address;
pub(crate) mod pending;
mod shared;
mod socket;
mod tcp;
pub(crate) mod tcp_info;
mod tls;
mod unix;
mod wait;

pub use connect::connect;
pub use error::TransportError;
pub use listener::Listener;
pub use options::TransportOptions;
pub use peer_address::PeerAddress;
pub use rdzv_trust::{Identity, Token};

/// The half of a connection that bytes come out of.
pub trait ReadHalf: Send {
    /// Reads what is there. It never waits.
    ///
    /// Who reads goes on until there is nothing, and sleeps only then: what was received may be
    /// here already, while the descriptor says nothing of it.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if there is nothing now. `Ok(0)` is no error: the peer has
    /// closed. Any other error is the end of the connection.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Whoever reads is going to sleep until the descriptor is readable. False: it must not, there
    /// is something to read.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    /// Whoever reads is awake again, whatever woke it. Follows each
    /// [`prepare_to_sleep`](Self::prepare_to_sleep) that returned true.
    fn awake(&mut self) {}

    /// Whether what comes while the reader is awake does not make the descriptor ready, so that a poller may
    /// go on watching it.
    fn is_quiet_awake(&self) -> bool {
        false
    }

    /// Becomes readable when there is something to read, the end included. No other half has the
    /// same.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// The half of a connection that bytes go into.
pub trait WriteHalf: Send {
    /// Writes the beginning of the parts, and says how many bytes that was. It never waits.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if nothing can be written now; the next call has to begin with
    /// the same bytes. Any other error is the end of the connection.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Whoever writes is going to sleep until the descriptor is ready. False: it must not, there is
    /// room.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    /// Whoever writes is awake again, whatever woke it. Follows each
    /// [`prepare_to_sleep`](Self::prepare_to_sleep) that returned true.
    fn awake(&mut self) {}

    /// Becomes ready when something can be written, or the connection is broken: see
    /// [`ready_when`](Self::ready_when). No other half has the same.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// What to watch the descriptor for.
    fn ready_when(&self) -> Readiness {
        Readiness::Writable
    }

    /// Ends the connection in both directions: the reader of this side and of the other one see
    /// that it is closed. What was written is still delivered.
    fn close(&mut self);
}

/// What a descriptor is watched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// That it can be read.
    Readable,
    /// That it can be written.
    Writable,
}

/// What carries the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransportKind {
    /// TCP.
    Tcp,
    /// TLS 1.3 over TCP.
    TlsTcp,
    /// A Unix socket.
    Unix,
    /// Rings in shared memory.
    Shared,
}

impl fmt::Display for TransportKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Tcp => "tcp",
            Self::TlsTcp => "tls",
            Self::Unix => "unix",
            Self::Shared => "shared",
        })
    }
}

/// A connection between two workers.
pub struct Carrier {
    /// What comes from the peer.
    pub read: Box<dyn ReadHalf>,
    /// What goes to the peer.
    pub write: Box<dyn WriteHalf>,
    /// What carries the bytes.
    pub kind: TransportKind,
    /// Why that was chosen.
    pub reason: String,
    /// Who is at the other end, as far as can be seen: an address, or a process and its user.
    pub peer: String,
    /// The process at the other end, as the kernel knows it; none over TCP.
    pub process: Option<Peer>,
    /// The worker names that the certificate of the peer is for; none without TLS.
    pub certified: Option<Vec<String>>,
    /// What lends the bytes of arenas; none where they cannot be lent.
    pub arenas: Option<Arc<Leases>>,
}

impl Carrier {
    /// Two halves of one kind; nothing else is known of the peer.
    fn new(
        (read, write): (impl ReadHalf + 'static, impl WriteHalf + 'static),
        kind: TransportKind,
        reason: String,
        peer: String,
    ) -> Self {
        Self {
            read: Box::new(read),
            write: Box::new(write),
            kind,
            reason,
            peer,
            process: None,
            certified: None,
            arenas: None,
        }
    }

    /// Whether the peer may say that this is its name: without TLS it may say anything.
    ///
    /// # Errors
    ///
    /// [`TransportError::Refused`] if its certificate is for others.
    pub fn check_name(&self, name: &str) -> Result<(), TransportError> {
        self.credentials().check(name)
    }

    /// What the peer has shown, for when it says its name.
    pub fn credentials(&self) -> Credentials {
        Credentials {
            peer: self.peer.clone(),
            certified: self.certified.clone(),
        }
    }
}

/// Who a peer is as far as it could be seen before it said its name.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    peer: String,
    certified: Option<Vec<String>>,
}

impl Credentials {
    /// Whether the peer may say that this is its name: without TLS it may say anything.
    ///
    /// # Errors
    ///
    /// [`TransportError::Refused`] if its certificate is for others.
    pub fn check(&self, name: &str) -> Result<(), TransportError> {
        let Some(certified) = &self.certified else {
            return Ok(());
        };
        if certified.iter().any(|certified| certified == name) {
            return Ok(());
        }
        Err(TransportError::Refused {
            peer: self.peer.clone(),
            reason: match certified.as_slice() {
                [] => format!(
                    "it says it is {name}, and its certificate names no worker: \
                     make one with the subject alternative name DNS:{name} or URI:rdzv:{name}"
                ),
                names => format!(
                    "it says it is {name}, and its certificate is for {}",
                    names.join(", ")
                ),
            },
        })
    }
}

impl fmt::Debug for Carrier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Carrier")
            .field("kind", &self.kind)
            .field("reason", &self.reason)
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
