//! Transports between workers: TCP, TLS over TCP, Unix sockets, shared memory.
//!
//! A worker listens ([`Listener`]) and publishes its address ([`PeerAddress`]). Another worker
//! connects ([`connect()`]), and each of the two gets a [`Carrier`]: two halves that transport
//! bytes and do not interpret frames. The locations and the options of the two workers decide the
//! kind of the carrier. The carrier also has the reason for this choice.
//!
//! ```text
//!  connect(address) ── same boot id? ── yes ─► Unix socket ── rings accepted? ── yes ─► Shared
//!                          │                      │ cannot be reached     └── no ──► Unix
//!                          └── no ──► TCP ◄───────┘
//!                                      └── certificates given? ── yes ─► TlsTcp, no ─► Tcp
//! ```
//!
//! All steps before the first frame (the TLS handshake, the offer of rings) are complete when a
//! worker gets a carrier. A peer that is refused before that usually receives the reason in a
//! `GoAway` frame or a TLS alert.
//!
//! Reading order: the traits here, [`peer_address`], [`options`], [`connect`](mod@connect) and
//! [`listener`]; then the kinds: `socket`, `tcp`, `unix`, `shared`, `tls`, and the connection of a
//! worker to itself. The crate `rdzv-trust` proves that two workers belong to one job.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use rdzv_shm::Leases;
pub use rdzv_shm::pass::Peer;

pub mod connect;
mod error;
pub mod listener;
pub mod options;
pub mod peer_address;
pub(crate) mod pending;
pub mod same_process;
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

/// Receiving half of a connection.
pub trait ReadHalf: Send {
    /// Reads the available bytes, and never waits.
    ///
    /// A reader must continue until no bytes are left before it sleeps. Received bytes may be in a
    /// buffer while the descriptor is not readable.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if no bytes are available now. `Ok(0)` is not an error: the
    /// peer has closed the connection. Any other error ends the connection.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize>;

    /// Prepares the reader to sleep until the descriptor is readable.
    ///
    /// Returns `false` if the reader must not sleep, because bytes are available.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    /// Records that the reader is awake, whatever woke it.
    ///
    /// Call this after each [`prepare_to_sleep`](Self::prepare_to_sleep) that returned `true`.
    fn awake(&mut self) {}

    /// `true` if arriving bytes do not signal the descriptor of an awake reader.
    ///
    /// A poller can then continue to watch the descriptor.
    fn is_quiet_awake(&self) -> bool {
        false
    }

    /// Returns a descriptor that signals bytes while the reader sleeps.
    ///
    /// No other half has the same descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Sending half of a connection.
pub trait WriteHalf: Send {
    /// Writes bytes from the start of the parts, and returns their number.
    ///
    /// This never waits.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::WouldBlock`] if no bytes can be written now; the next call must begin with
    /// the same bytes. Any other error ends the connection.
    fn write(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Prepares the writer to sleep until the descriptor is ready.
    ///
    /// Returns `false` if the writer must not sleep, because there is room.
    fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    /// Records that the writer is awake, whatever woke it.
    ///
    /// Call this after each [`prepare_to_sleep`](Self::prepare_to_sleep) that returned `true`.
    fn awake(&mut self) {}

    /// Returns a descriptor that is ready when there is room or an error.
    ///
    /// See [`ready_when`](Self::ready_when). No other half has the same descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Returns the condition to watch on the descriptor.
    fn ready_when(&self) -> Readiness {
        Readiness::Writable
    }

    /// Ends the connection in both directions.
    ///
    /// The readers on both sides see the end. Written bytes are still delivered.
    fn close(&mut self);
}

/// Condition of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Ready for reading.
    Readable,
    /// Ready for writing.
    Writable,
}

/// Kind of transport.
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
    /// Half that receives from the peer.
    pub read: Box<dyn ReadHalf>,
    /// Half that sends to the peer.
    pub write: Box<dyn WriteHalf>,
    /// Kind of transport.
    pub kind: TransportKind,
    /// Reason for this transport.
    pub reason: String,
    /// Visible identity of the peer: an address, or a process and its user.
    pub peer: String,
    /// Process of the peer, as the kernel reports it; `None` over TCP.
    pub process: Option<Peer>,
    /// Worker names in the peer's certificate; `None` without TLS.
    pub certified: Option<Vec<String>>,
    /// Leases of arena bytes; `None` unless the transport is shared memory.
    pub arenas: Option<Arc<Leases>>,
}

impl Carrier {
    /// Creates a carrier from two halves of one kind, without data about the peer.
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

    /// Checks that the peer may have this name; without TLS it may have any name.
    ///
    /// # Errors
    ///
    /// [`TransportError::Refused`] if its certificate is for other names.
    pub fn check_name(&self, name: &str) -> Result<(), TransportError> {
        self.credentials().check(name)
    }

    /// Returns the credentials of the peer, for a later check of its name.
    pub fn credentials(&self) -> PeerCredentials {
        PeerCredentials {
            peer: self.peer.clone(),
            certified: self.certified.clone(),
        }
    }
}

/// Identity of a peer before it has sent its name.
#[derive(Debug, Clone, Default)]
pub struct PeerCredentials {
    peer: String,
    certified: Option<Vec<String>>,
}

impl PeerCredentials {
    /// Checks that the peer may have this name; without TLS it may have any name.
    ///
    /// # Errors
    ///
    /// [`TransportError::Refused`] if its certificate is for other names.
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
                    "it claims to be {name}, but its certificate names no worker: create a \
                     certificate with the subject alternative name DNS:{name} or URI:rdzv:{name}"
                ),
                names => format!(
                    "it claims to be {name}, but its certificate is for {}",
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
