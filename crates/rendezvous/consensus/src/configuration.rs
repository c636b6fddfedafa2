//! Members of a group, and changes of the members.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{Buf as _, BufMut as _};

use crate::voter::VoterId;

/// Number of voter indexes, and therefore the maximum number of members.
pub(crate) const VOTER_INDICES: u8 = 10;

/// Voter indexes per position in a list of voters.
///
/// One is for the voter at the position, and one for the process that replaces it.
const INDICES_PER_VOTER: u8 = 2;

/// Members of a group: voters and learners.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Configuration {
    /// Voters; a majority of them decides.
    pub voters: BTreeSet<VoterId>,
    /// Outgoing voters; empty unless the configuration is joint.
    ///
    /// In a joint configuration, a majority of these must agree too.
    pub outgoing: BTreeSet<VoterId>,
    /// Members that receive every entry but do not vote.
    pub learners: BTreeSet<VoterId>,
    /// Voter index of each member, from 0; no two members share an index.
    ///
    /// The index decides how long a member waits before it campaigns.
    pub voter_indices: BTreeMap<VoterId, u8>,
}

impl Configuration {
    /// Returns the first configuration of a group.
    ///
    /// Voter indexes follow the order of the list. After each index, one stays free for a process
    /// that replaces the voter.
    pub fn of_voters(voters: &[VoterId]) -> Self {
        Self {
            voters: voters.iter().copied().collect(),
            voter_indices: voters
                .iter()
                .copied()
                .zip((0..).step_by(INDICES_PER_VOTER.into()))
                .collect(),
            ..Self::default()
        }
    }

    /// `true` if the member is a voter, an outgoing voter or a learner.
    pub fn has(&self, member: VoterId) -> bool {
        self.is_voter(member) || self.learners.contains(&member)
    }

    /// `true` if the member is a voter or an outgoing voter.
    pub fn is_voter(&self, member: VoterId) -> bool {
        self.voters.contains(&member) || self.outgoing.contains(&member)
    }

    /// `true` if two sets of voters must agree.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Returns all members in order.
    pub fn members(&self) -> BTreeSet<VoterId> {
        let members = self.voters.iter().chain(&self.outgoing);
        members.chain(&self.learners).copied().collect()
    }

    /// Returns the other members, in the order in which voters campaign.
    ///
    /// The order is that of the voter indexes, starting after the index of the lost leader. Agents
    /// search for the next leader in this order. Learners are included, but do not campaign.
    pub fn succession(&self, leader: VoterId) -> Vec<VoterId> {
        let first = self.voter_indices.get(&leader).copied().unwrap_or_default();
        let others = self
            .voter_indices
            .iter()
            .filter(|(member, _)| **member != leader);
        let mut others: Vec<_> = others
            .map(|(member, voter_index)| (voter_index.wrapping_sub(first), *member))
            .collect();
        others.sort_unstable();
        others.into_iter().map(|(_, member)| member).collect()
    }

    /// Returns the lowest free voter index; `None` if all are taken.
    ///
    /// With `position`, the indexes that are reserved for that position of the list come first.
    /// This keeps the order of the indexes equal to the order of the list.
    pub fn free_voter_index(&self, position: Option<u8>) -> Option<u8> {
        let of_position = position.map(|position| {
            let first = position.saturating_mul(INDICES_PER_VOTER);
            first..first.saturating_add(INDICES_PER_VOTER).min(VOTER_INDICES)
        });
        let is_free = |voter_index: &u8| {
            !self
                .voter_indices
                .values()
                .any(|other| other == voter_index)
        };
        let beside = of_position.into_iter().flatten().find(is_free);
        beside.or_else(|| (0..VOTER_INDICES).find(is_free))
    }

    /// `true` if `members` include majorities of current and outgoing voters.
    pub fn is_majority(&self, members: &BTreeSet<VoterId>) -> bool {
        let most = |voters: &BTreeSet<VoterId>| {
            voters.is_empty() || voters.intersection(members).count() * 2 > voters.len()
        };
        most(&self.voters) && most(&self.outgoing)
    }

    /// Returns this configuration after a change.
    ///
    /// A change of one member makes no joint configuration. A change of several members makes one,
    /// and an empty change leaves it.
    pub fn after(&self, change: &VoterChange) -> Self {
        let mut next = self.clone();
        if change.steps.is_empty() {
            next.outgoing.clear();
        } else if change.steps.len() > 1 {
            next.outgoing.clone_from(&self.voters);
        }
        for step in &change.steps {
            next.voters.remove(&step.member);
            next.learners.remove(&step.member);
            match step.kind {
                Kind::Voter => next.voters.insert(step.member),
                Kind::Learner => next.learners.insert(step.member),
                Kind::Removed => false,
            };
            if step.kind != Kind::Removed {
                next.voter_indices.insert(step.member, step.voter_index);
            }
        }
        let members = next.members();
        next.voter_indices
            .retain(|member, _| members.contains(member));
        next
    }

    /// Returns the reason why a change is not possible from here.
    pub(crate) fn fault(&self, leader: VoterId, change: &VoterChange) -> Option<&'static str> {
        if self.is_joint() {
            return Some("the last change is not over");
        }
        if change.steps.is_empty() {
            return Some("the change has no step");
        }
        let mut seen = BTreeSet::new();
        for step in &change.steps {
            if !seen.insert(step.member) {
                return Some("a member is changed twice");
            }
            let voter_index = self.voter_indices.get(&step.member);
            let fault = match step.kind {
                Kind::Removed if step.member == leader => Some("the leader hands over first"),
                Kind::Removed if voter_index.is_none() => {
                    Some("the removed process is not a member")
                }
                Kind::Removed => None,
                Kind::Learner if voter_index.is_some() => Some("the learner is a member already"),
                Kind::Voter if self.voters.contains(&step.member) => {
                    Some("the voter votes already")
                }
                _ => None,
            };
            if fault.is_some() {
                return fault;
            }
        }
        let next = self.after(change);
        let voter_indices: BTreeSet<u8> = next.voter_indices.values().copied().collect();
        if voter_indices.len() != next.members().len()
            || voter_indices
                .iter()
                .any(|voter_index| *voter_index >= VOTER_INDICES)
        {
            return Some("two members have one voter index");
        }
        next.voters.is_empty().then_some("no member would vote")
    }
}

/// Role of a member after a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Member with a vote.
    Voter,
    /// Member that receives the log but does not vote.
    Learner,
    /// Process that is not a member.
    Removed,
}

/// Step of a change, for one member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) member: VoterId,
    pub(crate) kind: Kind,
    pub(crate) voter_index: u8,
}

/// Change of members.
///
/// Majorities before and after a change of several steps must agree to it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct VoterChange {
    pub(crate) steps: Vec<Step>,
}

impl VoterChange {
    /// Adds a member as a learner or as a voter.
    pub fn add(&mut self, member: VoterId, kind: Kind, voter_index: u8) {
        self.steps.push(Step {
            member,
            kind,
            voter_index,
        });
    }

    /// Removes a member.
    pub fn remove(&mut self, member: VoterId) {
        self.add(member, Kind::Removed, 0);
    }

    /// `true` if nothing changes.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Returns the members that are not removed, with their voter indexes.
    pub fn added(&self) -> impl Iterator<Item = (VoterId, u8)> {
        let added = self.steps.iter().filter(|step| step.kind != Kind::Removed);
        added.map(|step| (step.member, step.voter_index))
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(10 * self.steps.len());
        for step in &self.steps {
            bytes.put_u8(match step.kind {
                Kind::Voter => 0,
                Kind::Learner => 1,
                Kind::Removed => 2,
            });
            bytes.put_u64_le(step.member.number());
            bytes.put_u8(step.voter_index);
        }
        bytes
    }

    /// Decodes the change in a log entry; `None` if the bytes are invalid.
    pub(crate) fn read(mut bytes: &[u8]) -> Option<Self> {
        // Every member may be removed, and every member may be replaced.
        if bytes.len() > 10 * 2 * usize::from(VOTER_INDICES) {
            return None;
        }
        let mut change = Self::default();
        while !bytes.is_empty() {
            let kind = match bytes.try_get_u8().ok()? {
                0 => Kind::Voter,
                1 => Kind::Learner,
                2 => Kind::Removed,
                _ => return None,
            };
            let member = VoterId::new(bytes.try_get_u64_le().ok()?)?;
            change.add(member, kind, bytes.try_get_u8().ok()?);
        }
        Some(change)
    }
}
