//! Errors of a group.
//!
//! Each names the rank at fault, its address and the operation.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_store::StoreError;
use thiserror::Error;

use crate::call::Call;
use crate::element::ElementType;
use crate::wire::{Cause, Refusal};

/// Reason why a group could not be made, or an operation failed.
///
/// After an error other than [`CollectiveError::Argument`] and [`CollectiveError::Object`] the
/// group is broken: it is unknown which data has arrived. Make the next group with
/// [`ProcessGroup::rebuild`](crate::ProcessGroup::rebuild), or a group with another name.
#[derive(Debug, Error)]
pub enum CollectiveError {
    /// An argument is wrong, as the text explains. The group is still usable.
    #[error("{0}")]
    Argument(String),
    /// The store failed during the bootstrap.
    #[error("find the ranks of process group {group}: {source}")]
    Store {
        /// Name of the group.
        group: String,
        /// Error of the store.
        #[source]
        source: Box<StoreError>,
    },
    /// Another process has joined as this rank in this store.
    #[error(
        "join process group {group} as rank {rank}: the store has rank {rank} at {found:?} already; \
         give each group a name of its own, and each restart, if it keeps the store, the next epoch"
    )]
    AlreadyJoined {
        /// Name of the group.
        group: String,
        /// The own rank.
        rank: u32,
        /// Value of its key in the store.
        found: String,
    },
    /// The ranks specify different world sizes.
    #[error(
        "join process group {group} as rank {rank}: rank 0 says that the group has {found} ranks, \
         this rank says {world_size}"
    )]
    WorldSize {
        /// Name of the group.
        group: String,
        /// The own rank.
        rank: u32,
        /// World size of this rank.
        world_size: u32,
        /// World size of rank 0.
        found: u32,
    },
    /// Some ranks did not arrive in time.
    #[error(
        "join process group {group} as rank {rank}: after {:.1} s still without {} of \
         {world_size}; see what became of them",
        .elapsed.as_secs_f64(),
        ranks_of(.missing)
    )]
    Missing {
        /// Name of the group.
        group: String,
        /// The own rank.
        rank: u32,
        /// The world size.
        world_size: u32,
        /// The missing ranks, as far as known.
        missing: Vec<u32>,
        /// Time waited.
        elapsed: Duration,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A rank did not do its part in time.
    #[error(
        "{call}: waited {:.1} s for rank {peer} at {address} ({state}); it is slow, stopped, or \
         has not made this call",
        .elapsed.as_secs_f64()
    )]
    Timeout {
        /// The own call.
        call: Call,
        /// The awaited rank.
        peer: u32,
        /// Address at which the rank listens.
        address: SocketAddr,
        /// Last known state of that rank.
        state: &'static str,
        /// Time since the operation began.
        elapsed: Duration,
    },
    /// Another thread of this process ended the operation with
    /// [`ProcessGroup::breaker`](crate::ProcessGroup::breaker).
    #[error(
        "{call}: rank {rank} was interrupted by a thread of its own after {:.1} s; this process group has \
         ended, make the next one with rebuild",
        .elapsed.as_secs_f64()
    )]
    Interrupted {
        /// The own call.
        call: Call,
        /// The own rank.
        rank: u32,
        /// Time since the operation began.
        elapsed: Duration,
    },
    /// The connection to a rank ended, or could not be made.
    #[error(
        "{call}: lost rank {peer} at {address} after {:.1} s ({reason}); its process has ended or \
         left the group",
        .elapsed.as_secs_f64()
    )]
    Lost {
        /// The own call.
        call: Call,
        /// The lost rank.
        peer: u32,
        /// Address at which the rank listened.
        address: SocketAddr,
        /// Error of the socket.
        reason: Box<str>,
        /// Time since the operation began.
        elapsed: Duration,
    },
    /// Two ranks made different calls.
    #[error("{ours}: rank {peer} at {address} called {theirs}; all ranks must make the same calls")]
    Mismatch {
        /// The own call.
        ours: Call,
        /// Call of the other rank.
        theirs: Box<Call>,
        /// The other rank.
        peer: u32,
        /// Address at which the other rank listens.
        address: SocketAddr,
    },
    /// A message differs in type or length from its receive.
    #[error(
        "{call}: rank {rank} expects {} x {}, but rank {peer} at {address} sent {elements} x {element} with this \
         tag; both must pass as many values of one type",
        .call.elements,
        .call.element
    )]
    MessageSize {
        /// The own call, a receive.
        call: Call,
        /// The own rank.
        rank: u32,
        /// The sender.
        peer: u32,
        /// Address at which the sender listens.
        address: SocketAddr,
        /// Number of elements of the message.
        elements: u64,
        /// Type of the elements.
        element: ElementType,
    },
    /// No rank sent a message in time to a receive from any rank.
    #[error(
        "{call}: waited {:.1} s, and no rank has sent a message with this tag{}; they are slow, stopped, or \
         do not send it",
        .elapsed.as_secs_f64(),
        gone_ranks(.gone)
    )]
    NoSender {
        /// The own call, a receive.
        call: Call,
        /// Ranks that have ended or left.
        gone: Vec<u32>,
        /// Time since the operation began.
        elapsed: Duration,
    },
    /// A rank refused this rank.
    #[error("{call}: rank {peer} at {address} refused this rank: {refusal}")]
    Refused {
        /// The own call.
        call: Call,
        /// The rank that refused.
        peer: u32,
        /// Address at which the refusing rank listens.
        address: SocketAddr,
        /// Reason of the refusal.
        refusal: Refusal,
    },
    /// The peer sent bytes that no rank sends.
    #[error("{call}: what is at {address} does not speak as rank {peer} would ({found})")]
    NotARank {
        /// The own call.
        call: Call,
        /// The rank that should be there.
        peer: u32,
        /// Address of the peer.
        address: SocketAddr,
        /// The bytes or the frame that it sent.
        found: String,
    },
    /// Some ranks did not reach a monitored barrier.
    #[error(
        "{call}: after {:.1} s still without {} of {world_size}{}; they are slow, stopped, or have \
         not made this call",
        .elapsed.as_secs_f64(),
        ranks_of(&.missing.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()),
        last_heard(.missing)
    )]
    NotReached {
        /// The own call.
        call: Call,
        /// Missing ranks, each with the last call in which it participated.
        missing: Vec<(u32, Option<Call>)>,
        /// Number of ranks in the group.
        world_size: u32,
        /// Time waited.
        elapsed: Duration,
    },
    /// A rank has more values than this one may reserve memory for.
    #[error(
        "{what}: with the {length} x {element} that rank {rank} has, the ranks have more together \
         than {largest} bytes; raise GroupOptions::largest if that is right"
    )]
    TooLarge {
        /// The operation.
        what: &'static str,
        /// Rank whose values exceed the limit.
        rank: u32,
        /// Number of elements of that rank.
        length: u64,
        /// Type of the elements.
        element: ElementType,
        /// Limit in bytes.
        largest: u64,
    },
    /// A rank has another number of elements for this one than this one has room for.
    #[error(
        "all_to_all_split: rank {rank} has {length} x {element} for this rank, which has room for {room}; the lengths \
         must be the same at both ends"
    )]
    Part {
        /// The other rank.
        rank: u32,
        /// Number of its elements.
        length: u64,
        /// Number of elements that there is room for.
        room: u64,
        /// Their type.
        element: ElementType,
    },
    /// The bytes of a rank are no object of the expected type.
    ///
    /// The group is still good.
    #[error(
        "{what}: the {bytes} bytes of rank {rank} are no object of this type ({reason}); build all \
         ranks from the same types"
    )]
    Object {
        /// The operation.
        what: &'static str,
        /// Whose object that is.
        rank: u32,
        /// Length of the object in bytes.
        bytes: usize,
        /// Error of the decoder.
        reason: String,
    },
    /// Another rank failed first.
    #[error("{call}: rank {peer} at {address} gave up, because rank {suspect} {cause}")]
    Aborted {
        /// The own call.
        call: Call,
        /// The rank that reported it.
        peer: u32,
        /// Where it listens.
        address: SocketAddr,
        /// The rank at fault.
        suspect: u32,
        /// The reason.
        cause: Cause,
    },
    /// The group was broken by an earlier error.
    #[error("this process group is broken since: {first}")]
    Broken {
        /// That error.
        first: String,
    },
}

/// The result of something that fails as an operation of a group does.
pub type Result<T, E = CollectiveError> = std::result::Result<T, E>;

impl CollectiveError {
    pub(crate) fn system(what: impl Into<String>, source: io::Error) -> Self {
        let what = what.into();
        Self::System { what, source }
    }

    pub(crate) fn broken(first: impl Into<String>) -> Self {
        let first = first.into();
        Self::Broken { first }
    }

    /// The rank at fault, as far as this one knows, and what it did.
    ///
    /// For a failure of this rank itself that is `own_rank`.
    pub fn blame(&self, own_rank: u32) -> (u32, Cause) {
        match *self {
            Self::Timeout { peer, .. } => (peer, Cause::TimedOut),
            Self::Lost { peer, .. } => (peer, Cause::Lost),
            Self::Mismatch { peer, .. } | Self::MessageSize { peer, .. } => (peer, Cause::Mismatch),
            Self::Part { rank, .. } => (rank, Cause::Mismatch),
            Self::Refused { peer, .. } => (peer, Cause::Refused),
            Self::Aborted { suspect, cause, .. } => (suspect, cause),
            Self::NotARank { peer, .. } => (peer, Cause::Other),
            Self::Interrupted { rank, .. } => (rank, Cause::Interrupted),
            Self::TooLarge { rank, .. } => (rank, Cause::Other),
            Self::NotReached { ref missing, .. } => {
                let first = missing.first().map_or(own_rank, |(rank, _)| *rank);
                (first, Cause::TimedOut)
            }
            _ => (own_rank, Cause::Other),
        }
    }

    /// Time since the operation began, where the error tells it.
    pub fn elapsed(&self) -> Option<Duration> {
        match self {
            Self::Missing { elapsed, .. }
            | Self::Timeout { elapsed, .. }
            | Self::Interrupted { elapsed, .. }
            | Self::Lost { elapsed, .. }
            | Self::NoSender { elapsed, .. }
            | Self::NotReached { elapsed, .. } => Some(*elapsed),
            _ => None,
        }
    }
}

/// "rank 1", "ranks 1, 2, 3", and the like, at most ten of them.
fn ranks_of(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(10).map(u32::to_string).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    let text = format!("rank{plural} {}", shown.join(", "));
    match ranks.len().saturating_sub(10) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// " (rank 1 ended or left the group)", and the like.
fn gone_ranks(gone: &[u32]) -> String {
    match gone {
        [] => String::new(),
        gone => format!(" ({} ended or left the group)", ranks_of(gone)),
    }
}

/// "; rank 1 was last heard of in all_reduce(…)", and the like.
fn last_heard(ranks: &[(u32, Option<Call>)]) -> String {
    let heard = ranks.iter().take(10).map(|(rank, call)| match call {
        Some(call) => format!("; rank {rank} was last heard of in {call}"),
        None => format!("; rank {rank} was never heard of"),
    });
    heard.collect()
}
