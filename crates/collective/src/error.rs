//! What can go wrong in a group. Every error names the rank at fault, its address and the operation.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rdzv_store::StoreError;
use thiserror::Error;

use crate::call::Call;
use crate::element::ElementType;

/// Why a group could not be made, or an operation failed.
///
/// After an error other than [`CollectiveError::Argument`] and [`CollectiveError::Object`] the group
/// is broken: what has arrived where is not known any more. Make the next one with
/// [`ProcessGroup::rebuild`](crate::ProcessGroup::rebuild), or a group of another name.
#[derive(Debug, Error)]
pub enum CollectiveError {
    /// An argument cannot be right: the text says which and why. The group is still good.
    #[error("{0}")]
    Argument(String),
    /// The store did not work while the ranks were finding one another.
    #[error("find the ranks of process group {group}: {source}")]
    Store {
        /// Name of the group.
        group: String,
        /// What the store said.
        #[source]
        source: Box<StoreError>,
    },
    /// The rank has been taken in this store before.
    #[error(
        "join process group {group} as rank {rank}: the store has rank {rank} at {found:?} already; \
         give each group a name of its own, and each restart, if it keeps the store, the next epoch"
    )]
    AlreadyJoined {
        /// Name of the group.
        group: String,
        /// The own rank.
        rank: u32,
        /// What the store has for it.
        found: String,
    },
    /// The ranks have different ideas of the world size.
    #[error(
        "join process group {group} as rank {rank}: rank 0 says that the group has {found} ranks, \
         this rank says {world_size}"
    )]
    WorldSize {
        /// Name of the group.
        group: String,
        /// The own rank.
        rank: u32,
        /// The own idea.
        world_size: u32,
        /// The idea of rank 0.
        found: u32,
    },
    /// Not all ranks came.
    #[error(
        "join process group {group} as rank {rank}: after {:.1} s still without {} of \
         {world_size}; see what became of them",
        .elapsed.as_secs_f64(),
        Ranks(.missing)
    )]
    Missing {
        /// Name of the group.
        group: String,
        /// The own rank.
        rank: u32,
        /// The world size.
        world_size: u32,
        /// Who did not come, as far as known.
        missing: Vec<u32>,
        /// How long was waited.
        elapsed: Duration,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
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
        /// Who was waited for.
        peer: u32,
        /// Where it listens.
        address: SocketAddr,
        /// What was seen of it.
        state: &'static str,
        /// How long the operation took.
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
        /// Who is gone.
        peer: u32,
        /// Where it listened.
        address: SocketAddr,
        /// What the socket said.
        reason: String,
        /// How long the operation took.
        elapsed: Duration,
    },
    /// Two ranks made different calls.
    #[error("{ours}: rank {peer} at {address} called {theirs}; all ranks must make the same calls")]
    Mismatch {
        /// The own call.
        ours: Call,
        /// The other's.
        theirs: Call,
        /// Who that is.
        peer: u32,
        /// Where it listens.
        address: SocketAddr,
    },
    /// A rank did not want to talk to this one.
    #[error("{call}: rank {peer} at {address} refused this rank: {refusal}")]
    Refused {
        /// The own call.
        call: Call,
        /// Who refused.
        peer: u32,
        /// Where it listens.
        address: SocketAddr,
        /// Why.
        refusal: Refusal,
    },
    /// The peer sent something that no rank sends.
    #[error("{call}: what is at {address} does not speak as rank {peer} would ({found})")]
    NotARank {
        /// The own call.
        call: Call,
        /// Who should be there.
        peer: u32,
        /// Where.
        address: SocketAddr,
        /// What it said.
        found: String,
    },
    /// Ranks did not come to a monitored barrier.
    #[error(
        "{call}: after {:.1} s still without {} of {world_size}{}; they are slow, stopped, or have \
         not made this call",
        .elapsed.as_secs_f64(),
        Ranks(&.missing.iter().map(|(rank, _)| *rank).collect::<Vec<_>>()),
        LastHeard(.missing)
    )]
    NotReached {
        /// The own call.
        call: Call,
        /// Who did not come, and the last call that each was heard of in.
        missing: Vec<(u32, Option<Call>)>,
        /// How many ranks the group has.
        world_size: u32,
        /// How long was waited.
        elapsed: Duration,
    },
    /// A rank says that it has more than this one may reserve room for.
    #[error(
        "{what}: with the {length} x {element} that rank {rank} has, the ranks have more together \
         than {largest} bytes; raise GroupOptions::largest if that is right"
    )]
    TooLarge {
        /// The operation.
        what: &'static str,
        /// The rank with which it becomes too much.
        rank: u32,
        /// How many elements it has.
        length: u64,
        /// Their type.
        element: ElementType,
        /// The limit.
        largest: u64,
    },
    /// What a rank sent is no object of the expected type. The group is still good.
    #[error(
        "{what}: the {bytes} bytes of rank {rank} are no object of this type ({reason}); build all \
         ranks from the same types"
    )]
    Object {
        /// The operation.
        what: &'static str,
        /// Whose object that is.
        rank: u32,
        /// How long it is.
        bytes: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// Another rank failed first.
    #[error("{call}: rank {peer} at {address} gave up, because rank {suspect} {cause}")]
    Aborted {
        /// The own call.
        call: Call,
        /// Who said so.
        peer: u32,
        /// Where it listens.
        address: SocketAddr,
        /// The rank at fault.
        suspect: u32,
        /// What it did.
        cause: Cause,
    },
    /// The group was broken by an earlier error.
    #[error("this process group is broken since: {first}")]
    Broken {
        /// That error.
        first: String,
    },
}

impl CollectiveError {
    /// The rank at fault, and what it did, for the other ranks.
    pub(crate) fn blame(&self, own_rank: u32) -> (u32, Cause) {
        match *self {
            Self::Timeout { peer, .. } => (peer, Cause::TimedOut),
            Self::Lost { peer, .. } => (peer, Cause::Lost),
            Self::Mismatch { peer, .. } => (peer, Cause::Mismatch),
            Self::Refused { peer, .. } => (peer, Cause::Refused),
            Self::Aborted { suspect, cause, .. } => (suspect, cause),
            Self::NotARank { peer, .. } => (peer, Cause::Other),
            Self::TooLarge { rank, .. } => (rank, Cause::Other),
            Self::NotReached { ref missing, .. } => {
                let first = missing.first().map_or(own_rank, |(rank, _)| *rank);
                (first, Cause::TimedOut)
            }
            _ => (own_rank, Cause::Other),
        }
    }
}

/// What a rank did that made another one give up. Reads after "rank 3 …".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It went away.
    Lost,
    /// It did not come in time.
    TimedOut,
    /// It made another call.
    Mismatch,
    /// It refused the rank that gave up.
    Refused,
    /// Something else.
    Other,
}

impl fmt::Display for Cause {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Lost => "ended or left the group",
            Self::TimedOut => "did not do its part in time",
            Self::Mismatch => "made a different call",
            Self::Refused => "refused to talk to it",
            Self::Other => "failed; see its own error",
        })
    }
}

/// Why a rank refuses another one. Reads after "refused this rank: …".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The bytes were no greeting of a rank.
    NotAHello,
    /// Another version of the protocol.
    Version {
        /// The refuser's version.
        expected: u16,
    },
    /// Another group, perhaps one of an earlier run.
    Group,
    /// Another world size.
    WorldSize {
        /// The refuser's.
        expected: u32,
    },
    /// The refuser is not the rank that was dialled.
    Rank {
        /// The refuser's rank.
        expected: u32,
    },
    /// There is a connection from that rank already.
    Duplicate,
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotAHello => write!(formatter, "it did not greet as a rank does"),
            Self::Version { expected } => write!(
                formatter,
                "it speaks version {expected} of the protocol; use the same rdzv everywhere"
            ),
            Self::Group => write!(
                formatter,
                "it belongs to another group; is the address from an earlier run?"
            ),
            Self::WorldSize { expected } => {
                write!(formatter, "its group has {expected} ranks")
            }
            Self::Rank { expected } => {
                write!(
                    formatter,
                    "it is rank {expected}; is its address reachable from here?"
                )
            }
            Self::Duplicate => write!(
                formatter,
                "it has a connection from a process with this rank already"
            ),
        }
    }
}

/// "rank 1", "ranks 1, 2, 3", and the like, at most ten of them.
struct Ranks<'a>(&'a [u32]);

impl fmt::Display for Ranks<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.0.iter().take(10).map(u32::to_string).collect();
        let plural = if self.0.len() == 1 { "" } else { "s" };
        write!(formatter, "rank{plural} {}", shown.join(", "))?;
        match self.0.len().saturating_sub(10) {
            0 => Ok(()),
            more => write!(formatter, " and {more} more"),
        }
    }
}

/// "; rank 1 was last heard of in all_reduce(…)", and the like.
struct LastHeard<'a>(&'a [(u32, Option<Call>)]);

impl fmt::Display for LastHeard<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rank, call) in self.0.iter().take(10) {
            match call {
                Some(call) => write!(formatter, "; rank {rank} was last heard of in {call}")?,
                None => write!(formatter, "; rank {rank} was never heard of")?,
            }
        }
        Ok(())
    }
}
