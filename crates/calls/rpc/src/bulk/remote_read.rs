//! Large parts that the receiver copies directly from the sender's memory.
//!
//! When two processes of a host connect without TCP, both test whether they can read each other's
//! memory, unless the options disable this. The caller sends an address and the number stored at
//! this address (*ping*). The callee reports whether it could read the number, and sends an address
//! and a number as well (*pong*). A process that cannot read the memory receives large parts
//! through the connection.
//!
//! Parts in an arena need not be read; see [`registered`](super::registered).
//!
//! The sender keeps a lent part until the receiver has read it or can no longer use it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use rdzv_rpc_proto::frame::{Frame, Part as Received, PartLocation};
use rdzv_shm::Pool;
use rdzv_shm::pass::Peer;
use rdzv_shm::remote_read::{self, Claim, Witness};
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;

use crate::bulk::registered::Arenas;
use crate::error::{RpcError, RpcErrorKind};
use crate::payload::{Answer, Payload, Then};
use crate::wire::poller::is_driver;
use crate::wire::writer::Part;

/// Minimum size in bytes of a part that is lent.
const WORTH_LENDING: usize = 64 * 1024;

/// Maximum number of bytes that the driver reads itself.
/// The driver has other connections to serve.
const QUICK: u64 = 256 * 1024;

/// Memory in bytes that is reserved first for a part that is read.
/// The announced length may be wrong.
const AT_FIRST: usize = 256 << 10;

/// Size in bytes of the buffer of a longer part after its first piece.
///
/// The value is large because several threads share a large read.
const NEXT: usize = 16 << 20;

/// The processes at both ends, and which of them can read the other's memory.
pub(crate) struct Lending {
    /// The other process, if its memory may be readable.
    process: Option<Peer>,
    pool: Pool,
    /// `true` if the other process can read this process's memory.
    lends: AtomicBool,
    /// `true` if this process can read the other's memory.
    reads: AtomicBool,
}

/// Content of a ping and of a pong.
#[derive(Debug, Serialize, Deserialize)]
struct Shown {
    address: u64,
    nonce: [u8; remote_read::NONCE],
    /// In a pong: `true` if the number in the ping could be read.
    read: bool,
}

/// Number that this process shows to all other processes, for its whole life.
static WITNESS: OnceLock<Option<Witness>> = OnceLock::new();

fn shown(read: bool) -> Option<Vec<u8>> {
    let witness = WITNESS.get_or_init(|| Witness::new().ok()).as_ref()?;
    let claim = witness.claim();
    let shown = Shown {
        address: claim.address,
        nonce: claim.nonce,
        read,
    };
    postcard::to_stdvec(&shown).ok()
}

impl Lending {
    /// Creates the state; `process` is `None` if its memory is not readable.
    pub(crate) fn new(process: Option<Peer>, pool: Pool) -> Self {
        Self {
            process,
            pool,
            lends: AtomicBool::new(false),
            reads: AtomicBool::new(false),
        }
    }

    /// `true` if the other process can read this process's memory.
    pub(crate) fn lends(&self) -> bool {
        self.lends.load(Ordering::Acquire)
    }

    /// Records that the other process reads this process's memory.
    pub(crate) fn is_read(&self) {
        if self.process.is_some() {
            self.lends.store(true, Ordering::Release);
        }
    }

    /// `true` if this process reads the memory of the other.
    pub(crate) fn reads_theirs(&self) -> bool {
        self.reads.load(Ordering::Acquire)
    }

    /// Returns the body of a ping; `None` if the test cannot be made.
    pub(crate) fn ping(&self) -> Option<Vec<u8>> {
        let process = self.process.as_ref()?;
        permit(process);
        shown(false)
    }

    pub(crate) fn answer_ping(&self, ping: &[u8]) -> Vec<u8> {
        if let Some(process) = &self.process {
            permit(process);
        }
        self.try_read(ping);
        shown(self.reads_theirs()).unwrap_or_default()
    }

    pub(crate) fn pong(&self, pong: &[u8]) {
        self.try_read(pong);
        if postcard::from_bytes::<Shown>(pong).is_ok_and(|shown| shown.read) {
            self.is_read();
        }
    }

    fn try_read(&self, body: &[u8]) {
        let (Ok(shown), Some(process)) = (postcard::from_bytes::<Shown>(body), &self.process)
        else {
            return;
        };
        let claim = Claim {
            address: shown.address,
            nonce: shown.nonce,
        };
        match remote_read::probe(process, &claim) {
            Ok(()) => self.reads.store(true, Ordering::Release),
            Err(reason) => {
                tracing::debug!(
                    process = process.process, %reason,
                    "large parts are sent over the connection"
                );
            }
        }
    }
}

/// Permits the other process to read this one, where the kernel requires it.
///
/// If that fails, the test of the other process usually fails too.
fn permit(process: &Peer) {
    if let Err(reason) = remote_read::permit(process.process) {
        tracing::debug!(%reason, "another process is not allowed to read this one");
    }
}

/// Chooses the location of each part of a message.
/// A large part stays in its arena if it is in one and can be lent. Otherwise the receiver reads it
/// from this process's memory if it can. All other parts follow the message.
pub(crate) fn placed(parts: Vec<Bytes>, lend: bool, arenas: &Arenas) -> Vec<Part> {
    let locate = |bytes: &Bytes| {
        if bytes.len() < WORTH_LENDING {
            return PartLocation::Inline;
        }
        arenas.lend(bytes).unwrap_or_else(|| {
            if lend {
                PartLocation::Process {
                    address: bytes.as_ptr().addr() as u64,
                }
            } else {
                PartLocation::Inline
            }
        })
    };
    parts
        .into_iter()
        .map(|bytes| Part {
            location: locate(&bytes),
            bytes,
        })
        .collect()
}

/// Returns the parts that must be kept until they are read from this process.
pub(crate) fn kept(parts: &[Part]) -> Vec<Bytes> {
    let registered = parts
        .iter()
        .filter(|part| matches!(part.location, PartLocation::Process { .. }));
    registered.map(|part| part.bytes.clone()).collect()
}

/// `true` if parts of a message must be taken from the memory of the sender.
pub(crate) fn is_registered(parts: &[Received]) -> bool {
    parts
        .iter()
        .any(|part| matches!(part, Received::Elsewhere(_)))
}

/// `true` if this thread reads the parts itself.
pub(crate) fn is_quick(frame: &Frame) -> bool {
    frame.parts.iter().map(length).sum::<u64>() <= QUICK || !is_driver()
}

/// Reads the lent parts, and then calls `then` with the whole message.
/// This thread reads if the parts [are quick to read](is_quick), and another one otherwise.
pub(crate) fn fetch(
    runtime: &Handle,
    frame: Frame,
    lending: &Arc<Lending>,
    then: impl FnOnce(Answer) + Send + 'static,
) {
    if is_quick(&frame) {
        return then(gathered(frame, lending));
    }
    let lending = Arc::clone(lending);
    let then = Then::new(then);
    runtime.spawn_blocking(move || then.go_on(gathered(frame, &lending)));
}

fn length(part: &Received) -> u64 {
    match part {
        Received::Here(bytes) => bytes.len() as u64,
        Received::Elsewhere(head) => head.length,
    }
}

pub(crate) fn gathered(frame: Frame, lending: &Lending) -> Answer {
    let parts = frame.parts.into_iter().map(|part| match part {
        Received::Here(bytes) => Ok(bytes),
        Received::Elsewhere(head) => lending.read(&head),
    });
    Ok(Payload {
        parts: parts.collect::<Result<_, _>>()?,
        body: frame.body,
    })
}

impl Lending {
    fn read(&self, head: &rdzv_rpc_proto::frame::PartHead) -> Result<Bytes, RpcError> {
        let (PartLocation::Process { address }, Some(process), true) =
            (head.location, &self.process, self.reads_theirs())
        else {
            let text = "a part of the message is in memory that this process cannot read";
            return Err(RpcError::new(RpcErrorKind::Protocol, text));
        };
        let length = usize::try_from(head.length).unwrap_or(usize::MAX);
        let mut buffer = self.pool.begin(length, AT_FIRST);
        let mut read = 0;
        loop {
            let piece = &mut buffer.as_mut()[read..];
            let from = address.saturating_add(read as u64);
            if let Err(error) = remote_read::read(process.process, from, piece) {
                let text = format!(
                    "cannot read the memory of the worker, which has probably exited: {error}"
                );
                return Err(RpcError::new(RpcErrorKind::PeerLost, text));
            }
            read = buffer.as_ref().len();
            if read == length {
                return Ok(buffer.freeze());
            }
            if !buffer.grow(length.min(NEXT.max(2 * read))) {
                let text = format!("cannot allocate {length} bytes for a part");
                return Err(RpcError::new(RpcErrorKind::Protocol, text));
            }
        }
    }
}
