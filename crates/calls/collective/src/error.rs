//! Errors of a process group.
//!
//! Most errors of operations name the operation and, if it is known, the rank at fault.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_store::StoreError;
use thiserror::Error;

use crate::call::Call;
use crate::element::ElementType;
use crate::wire::{AbortCause, GroupRefusal};

/// Error from creating a group, or from an operation in a group.
///
/// Most errors break the group, because it is unknown which data has arrived.
/// [`CollectiveError::Argument`] and [`CollectiveError::Object`] leave the group usable. After
/// other errors, form the next group with [`ProcessGroup::rebuild`](crate::ProcessGroup::rebuild),
/// or a group with another name.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// An argument is invalid, as the text explains. The group is still usable.
    #[error("{0}")]
    Argument(String),
    /// The store failed during the bootstrap.
    #[error("cannot find the ranks of process group {group}: {source}")]
    Store {
        /// Name of the group.
        group: String,
        /// Error from the store.
        #[source]
        source: Box<StoreError>,
    },
    /// The store already has this rank in a group of this name and epoch.
    #[error(
        "cannot join process group {group} as rank {rank}: the store already has rank {rank} at \
         {found:?}\n\
         help: give each group a different name, and each restart that keeps the store the next epoch"
    )]
    AlreadyJoined {
        /// Name of the group.
        group: String,
        /// Rank of this process.
        rank: u32,
        /// First bytes of the value that the key already has in the store.
        found: String,
    },
    /// The ranks specify different world sizes.
    #[error(
        "cannot join process group {group} as rank {rank}: rank 0 specifies world size \
         {found}, but this rank specifies {world_size}"
    )]
    WorldSize {
        /// Name of the group.
        group: String,
        /// Rank of this process.
        rank: u32,
        /// World size that this rank specifies.
        world_size: u32,
        /// World size that rank 0 specifies.
        found: u32,
    },
    /// Some ranks did not join in time.
    #[error(
        "cannot join process group {group} as rank {rank}: waited {:.1} s for {} of \
         {world_size} to join\nhelp: check whether these ranks are running",
        .elapsed.as_secs_f64(),
        ranks_of(.missing)
    )]
    Missing {
        /// Name of the group.
        group: String,
        /// Rank of this process.
        rank: u32,
        /// Number of ranks in the group.
        world_size: u32,
        /// Missing ranks, as far as this rank knows.
        missing: Vec<u32>,
        /// Time for which this rank waited.
        elapsed: Duration,
    },
    /// The operating system returned an error, or a rank has an unusable address.
    ///
    /// An address is unusable if it is a loopback address of another host.
    #[error("cannot {what}: {source}")]
    System {
        /// The attempted action.
        what: String,
        /// Error from the operating system.
        #[source]
        source: io::Error,
    },
    /// A rank did not do its part of the operation in time.
    #[error(
        "{call}: waited {:.1} s for rank {peer} at {address} ({state}); it is slow, stopped, or \
         has not made this call",
        .elapsed.as_secs_f64()
    )]
    Timeout {
        /// Operation that this rank called.
        call: Call,
        /// Rank for which this rank waited.
        peer: u32,
        /// Address at which that rank listens.
        address: SocketAddr,
        /// Last known state of that rank.
        state: &'static str,
        /// Time since the operation started.
        elapsed: Duration,
    },
    /// A thread of this process interrupted the operation.
    ///
    /// The thread used [`ProcessGroup::breaker`](crate::ProcessGroup::breaker) or
    /// [`ProcessGroup::watch`](crate::ProcessGroup::watch).
    #[error(
        "{call}: rank {rank} was interrupted by a thread after {:.1} s; this process group can no \
         longer be used\n\
         help: create the next group with rebuild",
        .elapsed.as_secs_f64()
    )]
    Interrupted {
        /// Operation that this rank called.
        call: Call,
        /// Rank of this process.
        rank: u32,
        /// Time since the operation started.
        elapsed: Duration,
    },
    /// The connection to a rank was closed, or could not be opened.
    #[error(
        "{call}: lost rank {peer} at {address} after {:.1} s ({reason}); its process has probably \
         exited or left the group",
        .elapsed.as_secs_f64()
    )]
    Lost {
        /// Operation that this rank called.
        call: Call,
        /// Rank to which the connection was lost.
        peer: u32,
        /// Address at which that rank listened.
        address: SocketAddr,
        /// Error from the socket, or that the rank has left the group.
        reason: Box<str>,
        /// Time since the operation started.
        elapsed: Duration,
    },
    /// Two ranks called different operations.
    #[error(
        "{ours}: rank {peer} at {address} called {theirs}\nhelp: make the same calls on all ranks"
    )]
    Mismatch {
        /// Operation that this rank called.
        ours: Call,
        /// Operation that the other rank called.
        theirs: Box<Call>,
        /// Rank that called the other operation.
        peer: u32,
        /// Address at which that rank listens.
        address: SocketAddr,
    },
    /// A message and its receive differ in element type or length.
    #[error(
        "{call}: rank {rank} expects {} x {}, but rank {peer} at {address} sent {elements} x {element} with this \
         tag\nhelp: pass the same number of values of the same type on both ranks",
        .call.elements,
        .call.element
    )]
    MessageSize {
        /// Receive that this rank called.
        call: Call,
        /// Rank of this process.
        rank: u32,
        /// Rank that sent the message.
        peer: u32,
        /// Address at which the sender listens.
        address: SocketAddr,
        /// Number of elements in the message.
        elements: u64,
        /// Type of the elements in the message.
        element: ElementType,
    },
    /// No rank sent a message in time for a receive from any rank.
    #[error(
        "{call}: no rank sent a message with this tag within {:.1} s{}; the other ranks are slow, \
         stopped, or do not send it",
        .elapsed.as_secs_f64(),
        gone_ranks(.gone)
    )]
    NoSender {
        /// Receive that this rank called.
        call: Call,
        /// Ranks that have exited or left the group.
        gone: Vec<u32>,
        /// Time since the operation started.
        elapsed: Duration,
    },
    /// A rank refused the connection of this rank.
    #[error("{call}: rank {peer} at {address} refused this rank: {refusal}")]
    Refused {
        /// Operation that this rank called.
        call: Call,
        /// Rank that refused the connection.
        peer: u32,
        /// Address at which that rank listens.
        address: SocketAddr,
        /// Reason for the refusal.
        refusal: GroupRefusal,
    },
    /// The process at an address does not speak the protocol of a rank.
    #[error(
        "{call}: the process at {address} does not speak the protocol of rank {peer} ({found})"
    )]
    NotARank {
        /// Operation that this rank called.
        call: Call,
        /// Rank that was expected at the address.
        peer: u32,
        /// Address of the process.
        address: SocketAddr,
        /// Unexpected bytes or frame, or a description of the violation.
        found: String,
    },
    /// Some ranks did not reach a monitored barrier in time.
    #[error(
        "{call}: waited {:.1} s for {} of {world_size}{}; they are slow, stopped, or have not made \
         this call",
        .elapsed.as_secs_f64(),
        ranks_of(&.missing.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()),
        last_heard(.missing)
    )]
    NotReached {
        /// Operation that this rank called.
        call: Call,
        /// Missing ranks, each with the last call from which data has arrived here.
        missing: Vec<(u32, Option<Call>)>,
        /// Number of ranks in the group.
        world_size: u32,
        /// Time for which this rank waited.
        elapsed: Duration,
    },
    /// The values from all ranks exceed the memory that this rank may reserve.
    #[error(
        "{what}: with the {length} x {element} of rank {rank}, the values of all ranks exceed \
         {largest} bytes\nhelp: check the length; in Rust, GroupOptions::largest raises the limit"
    )]
    TooLarge {
        /// Name of the operation.
        what: &'static str,
        /// Rank whose values exceed the limit.
        rank: u32,
        /// Number of elements on that rank.
        length: u64,
        /// Type of the elements.
        element: ElementType,
        /// Limit in bytes.
        largest: u64,
    },
    /// A rank has a different number of elements for this rank than expected.
    #[error(
        "all_to_all_split: rank {rank} has {length} x {element} for this rank, which has room for \
         {room}\nhelp: pass the same length on both ranks"
    )]
    Part {
        /// Rank that has the elements.
        rank: u32,
        /// Number of elements that the rank has for this rank.
        length: u64,
        /// Number of elements that this rank expects.
        room: u64,
        /// Type of the elements.
        element: ElementType,
    },
    /// The bytes from a rank are not an object of the expected type.
    ///
    /// The group is still usable.
    #[error(
        "{what}: the message from rank {rank} is not an object of this type ({bytes} bytes; \
         {reason})\n\
         help: use the same types on all ranks"
    )]
    Object {
        /// Name of the operation.
        what: &'static str,
        /// Rank that sent the object.
        rank: u32,
        /// Length of the serialised object in bytes.
        bytes: usize,
        /// Error from the decoder.
        reason: String,
    },
    /// Another rank failed first.
    #[error("{call}: rank {peer} at {address} stopped, because rank {suspect} {cause}")]
    Aborted {
        /// Operation that this rank called.
        call: Call,
        /// Rank that reported the failure.
        peer: u32,
        /// Address at which that rank listens.
        address: SocketAddr,
        /// Rank at fault.
        suspect: u32,
        /// Reason for the failure.
        cause: AbortCause,
    },
    /// An earlier error broke the group, or this rank has left the group.
    #[error("this process group can no longer be used: {first}")]
    Broken {
        /// Text of the first error.
        first: String,
    },
}

/// Result of a group operation.
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

    /// Returns the rank at fault, as far as this rank knows, and the cause.
    ///
    /// If this rank itself failed or no other rank is known, the returned rank is `own_rank`. This
    /// also applies to [`Missing`](Self::Missing) and [`Object`](Self::Object).
    pub fn blame(&self, own_rank: u32) -> (u32, AbortCause) {
        match *self {
            Self::Timeout { peer, .. } => (peer, AbortCause::TimedOut),
            Self::Lost { peer, .. } => (peer, AbortCause::Lost),
            Self::Mismatch { peer, .. } | Self::MessageSize { peer, .. } => {
                (peer, AbortCause::Mismatch)
            }
            Self::Part { rank, .. } => (rank, AbortCause::Mismatch),
            Self::Refused { peer, .. } => (peer, AbortCause::Refused),
            Self::Aborted { suspect, cause, .. } => (suspect, cause),
            Self::NotARank { peer, .. } => (peer, AbortCause::Other),
            Self::Interrupted { rank, .. } => (rank, AbortCause::Interrupted),
            Self::TooLarge { rank, .. } => (rank, AbortCause::Other),
            Self::NotReached { ref missing, .. } => {
                let first = missing.first().map_or(own_rank, |(rank, _)| *rank);
                (first, AbortCause::TimedOut)
            }
            _ => (own_rank, AbortCause::Other),
        }
    }

    /// Returns the time since the operation started, if the error contains it.
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

/// Returns "rank 1", "ranks 1, 2, 3" or similar, with at most ten ranks.
fn ranks_of(ranks: &[u32]) -> String {
    let shown: Vec<String> = ranks.iter().take(10).map(u32::to_string).collect();
    let plural = if ranks.len() == 1 { "" } else { "s" };
    let text = format!("rank{plural} {}", shown.join(", "));
    match ranks.len().saturating_sub(10) {
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

/// Returns " (rank 1 exited or left the group)" or similar.
fn gone_ranks(gone: &[u32]) -> String {
    match gone {
        [] => String::new(),
        gone => format!(" ({} exited or left the group)", ranks_of(gone)),
    }
}

/// Returns "; the last known call of rank 1 is all_reduce(…)" or similar.
fn last_heard(ranks: &[(u32, Option<Call>)]) -> String {
    let heard = ranks.iter().take(10).map(|(rank, call)| match call {
        Some(call) => format!("; the last known call of rank {rank} is {call}"),
        None => format!("; rank {rank} has no known call"),
    });
    heard.collect()
}
