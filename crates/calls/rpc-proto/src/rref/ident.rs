//! Members, the ids of references and forks, and references in flight.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::worker::WorkerId;

/// Number of incarnation bits in a local id; the other bits are a count.
const INCARNATION_BITS: u32 = 24;

/// One incarnation of a worker.
///
/// A process that restarts with the same id is another member.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Member {
    /// Id of the worker in its group.
    pub id: WorkerId,
    /// Random number that differs between the incarnations of a worker.
    pub incarnation: u64,
}

impl Member {
    /// Creates the member for this incarnation of a worker.
    pub const fn new(id: WorkerId, incarnation: u64) -> Self {
        Self { id, incarnation }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {}", self.id)
    }
}

/// Id that no other worker assigns, and practically no other incarnation.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct GlobalId {
    /// Worker that assigned the id.
    pub created_on: WorkerId,
    /// Number of the id at that worker: 24 bits of the incarnation, then a count.
    pub local_id: u64,
}

impl GlobalId {
    /// Returns the first id of a member.
    pub(super) fn first(member: Member) -> Self {
        Self {
            created_on: member.id,
            local_id: member.incarnation << (u64::BITS - INCARNATION_BITS),
        }
    }
}

impl fmt::Display for GlobalId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "GloballyUniqueId(created_on={}, local_id={})",
            self.created_on, self.local_id
        )
    }
}

/// Id of a value, equal on all workers that refer to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RRefId(pub GlobalId);

/// Id of one worker's share in a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ForkId(pub GlobalId);

impl fmt::Display for RRefId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl fmt::Display for ForkId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Access of a worker to a value: the value itself, or a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Handle {
    /// The value, on its owner.
    Owner(RRefId),
    /// A fork, on any other worker.
    User(RRefId, ForkId),
}

impl Handle {
    /// Returns the id of the value.
    pub fn rref(self) -> RRefId {
        match self {
            Self::Owner(rref) | Self::User(rref, _) => rref,
        }
    }
}

/// Prints as PyTorch does: `OwnerRRef(…)`, `UserRRef(RRefId = …, ForkId = …)`.
impl fmt::Display for Handle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owner(rref) => write!(formatter, "OwnerRRef({rref})"),
            Self::User(rref, fork) => {
                write!(formatter, "UserRRef(RRefId = {rref}, ForkId = {fork})")
            }
        }
    }
}

/// Reference in flight, inside a call or its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForkData {
    /// Owner of the value.
    pub owner: Member,
    /// Id of the value.
    pub rref: RRefId,
    /// Share of the worker that receives this reference.
    pub fork: ForkId,
    /// Member that created the fork.
    ///
    /// This member keeps the value alive until the owner knows the fork.
    pub parent: Member,
    /// Member that asked the owner to create the value.
    ///
    /// `None` if the owner is known to have an entry for the value.
    pub creator: Option<Member>,
}

/// Number that the driver assigns to a request for a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u64);
