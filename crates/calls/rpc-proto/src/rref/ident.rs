//! Members, the ids of references and forks, and what travels inside of a call.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::worker::WorkerId;

/// How many bits of a local id tell the lives of a worker apart; the rest counts.
const INCARNATION_BITS: u32 = 24;

/// One life of a worker.
///
/// A process that starts again under the same id is another member.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Member {
    /// The worker's id in its group.
    pub id: WorkerId,
    /// Which of its lives; no two lives of a worker have the same.
    pub incarnation: u64,
}

impl Member {
    /// This life of a worker.
    pub const fn new(id: WorkerId, incarnation: u64) -> Self {
        Self { id, incarnation }
    }
}

impl fmt::Display for Member {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "worker {}", self.id)
    }
}

/// An id that no other worker gives to anything, nor the same worker in another life.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct GlobalId {
    /// The worker that gave it.
    pub created_on: WorkerId,
    /// Its number there: 24 bits of the incarnation, then a count.
    pub local_id: u64,
}

impl GlobalId {
    /// The first id of a member.
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

/// The id of a value, wherever it is referred to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RRefId(pub GlobalId);

/// The id of one worker's share in a value.
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

/// What a worker holds of a value: the value itself, or a fork.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Handle {
    /// On the owner.
    Owner(RRefId),
    /// On any other worker.
    User(RRefId, ForkId),
}

impl Handle {
    /// The value that it is about.
    pub fn rref(self) -> RRefId {
        match self {
            Self::Owner(rref) | Self::User(rref, _) => rref,
        }
    }
}

/// As PyTorch prints them: `OwnerRRef(…)`, `UserRRef(RRefId = …, ForkId = …)`.
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

/// A reference in flight to another worker, inside of a call or of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ForkData {
    /// Who has the value.
    pub owner: Member,
    /// The value.
    pub rref: RRefId,
    /// The share of whoever receives this.
    pub fork: ForkId,
    /// Who made the fork, and keeps the value alive until the owner knows of it.
    pub parent: Member,
    /// Who asked the owner to make the value, if the owner may not have heard of that yet.
    pub creator: Option<Member>,
}

/// A question for a value, named by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FetchId(pub u64);
