//! Large parts that the receiver reads out of the sender's memory, so that they are copied once.
//!
//! Whether one process can read another's memory is tried when they meet: each side names an
//! address and the number that stands there (*ping*), and the other one says whether it could read
//! it (*pong*). Where it cannot, large parts go through the connection like small ones.
//!
//! Parts that lie in an arena need not be read at all, see `arenas`.
//!
//! What is lent is kept until the receiver has read it, or can have no further use of it.

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

/// From this size on, in bytes, parts are lent.
const WORTH_LENDING: usize = 64 * 1024;

/// The driver reads no more than this by itself, in bytes; it has other connections to look after.
const QUICK: u64 = 256 * 1024;

/// The memory that is reserved at first, in bytes, for a part that is to be read: what is announced
/// need not be there.
const AT_FIRST: usize = 256 << 10;

/// The memory that is reserved, in bytes, once the beginning was there.
///
/// Large reads are shared between threads, so it is no less.
const NEXT: usize = 16 << 20;

/// The processes at both ends, and what each can read of the other.
pub(crate) struct Lending {
    /// The other process, if it is on this host.
    process: Option<Peer>,
    pool: Pool,
    /// It can read ours.
    lends: AtomicBool,
    /// We can read its memory.
    reads: AtomicBool,
}

/// What a ping and a pong say.
#[derive(Debug, Serialize, Deserialize)]
struct Shown {
    address: u64,
    nonce: [u8; remote_read::NONCE],
    /// In a pong: whether what the ping showed could be read.
    read: bool,
}

/// What is shown to other processes: one for all, and for good.
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
    /// To the process of this number on this host; to nobody, if the other end is elsewhere.
    pub(crate) fn new(process: Option<Peer>, pool: Pool) -> Self {
        Self {
            process,
            pool,
            lends: AtomicBool::new(false),
            reads: AtomicBool::new(false),
        }
    }

    /// `true` if the other end may read out of our memory.
    pub(crate) fn lends(&self) -> bool {
        self.lends.load(Ordering::Acquire)
    }

    /// Notes that the other end says it reads out of our memory.
    pub(crate) fn is_read(&self) {
        if self.process.is_some() {
            self.lends.store(true, Ordering::Release);
        }
    }

    /// `true` if we read out of the other end's memory.
    pub(crate) fn reads_theirs(&self) -> bool {
        self.reads.load(Ordering::Acquire)
    }

    /// The body of a ping, if there is any use in one.
    pub(crate) fn ping(&self) -> Option<Vec<u8>> {
        let process = self.process.as_ref()?;
        permit(process);
        shown(false)
    }

    /// The body of the pong for this ping.
    pub(crate) fn answer_ping(&self, ping: &[u8]) -> Vec<u8> {
        if let Some(process) = &self.process {
            permit(process);
        }
        self.try_read(ping);
        shown(self.reads_theirs()).unwrap_or_default()
    }

    /// Takes the answer to our ping.
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
                tracing::debug!(process = process.process, %reason, "large parts go through the connection");
            }
        }
    }
}

/// Lets the other process read, where that has to be allowed.
///
/// If it cannot be, its probe will fail.
fn permit(process: &Peer) {
    if let Err(reason) = remote_read::permit(process.process) {
        tracing::debug!(%reason, "another process is not allowed to read this one");
    }
}

/// The parts of a message, and where the receiver finds them: best where they are, if that is in an
/// arena; else in our memory, if it can read that; else behind the message.
pub(crate) fn placed(parts: Vec<Bytes>, lend: bool, arenas: &Arenas) -> Vec<Part> {
    let place = |bytes: &Bytes| {
        if bytes.len() < WORTH_LENDING {
            return PartLocation::Inline;
        }
        arenas.lend(bytes).unwrap_or_else(|| match lend {
            true => PartLocation::Process {
                address: bytes.as_ptr().addr() as u64,
            },
            false => PartLocation::Inline,
        })
    };
    parts
        .into_iter()
        .map(|bytes| Part {
            location: place(&bytes),
            bytes,
        })
        .collect()
}

/// The parts that have to be kept until they are read out of our memory.
pub(crate) fn kept(parts: &[Part]) -> Vec<Bytes> {
    let registered = parts
        .iter()
        .filter(|part| matches!(part.location, PartLocation::Process { .. }));
    registered.map(|part| part.bytes.clone()).collect()
}

/// `true` if some parts of a message have to be read out of another memory.
pub(crate) fn is_registered(parts: &[Received]) -> bool {
    parts
        .iter()
        .any(|part| matches!(part, Received::Elsewhere(_)))
}

/// Reads the parts that are lent, and goes on with the whole message: at once, or on another thread
/// if this is the driver and there is much to read.
pub(crate) fn fetch(
    runtime: &Handle,
    frame: Frame,
    lending: &Arc<Lending>,
    then: impl FnOnce(Answer) + Send + 'static,
) {
    let total: u64 = frame.parts.iter().map(length).sum();
    if total <= QUICK || !is_driver() {
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

/// The message with all its parts.
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
                let text = format!("its memory cannot be read, so it has ended: {error}");
                return Err(RpcError::new(RpcErrorKind::PeerLost, text));
            }
            read = buffer.as_ref().len();
            if read == length {
                return Ok(buffer.freeze());
            }
            if !buffer.grow(length.min(NEXT.max(2 * read))) {
                let text = format!("there is no memory for a part of {length} bytes");
                return Err(RpcError::new(RpcErrorKind::Protocol, text));
            }
        }
    }
}
