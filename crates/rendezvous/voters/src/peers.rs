//! The processes at the places of the group, as they have introduced themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdzv_consensus::VoterId;
use rdzv_consensus::membership::{Candidate, Standing};
use rdzv_core::ident::ConnId;
use rdzv_core::time::Mono;

/// The process at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) voter: VoterId,
    /// Its group; 0 if it is in none.
    pub(super) group: u128,
    /// The number of groups that were lost before, as far as it knows.
    pub(super) epoch: u32,
    /// In a group that agents may join: the rounds that it knows of, and the part of the log that it has applied, or
    /// remembers; and whether it votes there.
    pub(super) rounds: u32,
    pub(super) applied: (u64, u64),
    pub(super) votes: bool,
    /// It is no agent.
    pub(super) is_store: bool,
    /// Its connection, as long as there is one.
    pub(super) connection: Option<ConnId>,
    /// When it was first heard of.
    pub(super) since: Mono,
    /// Since when there is none.
    pub(super) absent_since: Mono,
    /// It has said that it is about to end.
    pub(super) leaves: bool,
}

/// All places but this process' own.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<usize, Peer>,
    /// Processes that have ended, because others have their places.
    ended: BTreeSet<VoterId>,
    /// The addresses of processes, those that have ended among them.
    addresses: BTreeMap<VoterId, String>,
    /// The other members of a group that the process at a place remembers.
    remembered: BTreeMap<usize, Vec<String>>,
}

/// Where the process at a place is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whereabouts {
    /// Equal numbers are one machine.
    pub(super) machine: u64,
    /// Equal numbers are one network.
    pub(super) network: u64,
    /// Its position in the list of the group, if there is one.
    pub(super) position: Option<u8>,
}

/// The difference that an introduction makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Introduced {
    /// The process that was at the place before, which has ended therefore, if it is another one.
    pub(super) ended: Option<VoterId>,
    /// The connection that it had before.
    pub(super) replaced: Option<ConnId>,
    /// It had no connection before, or was in another group.
    pub(super) is_new: bool,
}

impl Peers {
    /// The process at a place has said who it is.
    pub(super) fn introduce(&mut self, place: usize, address: &str, mut peer: Peer) -> Introduced {
        let (voter, group, connection) = (peer.voter, peer.group, peer.connection);
        let before = self.peers.get(&place).copied();
        let same = before.filter(|peer| peer.voter == voter);
        if let Some(same) = same {
            (peer.since, peer.leaves) = (same.since, same.leaves);
        }
        self.peers.insert(place, peer);
        let old = before.and_then(|peer| peer.connection);
        let ended = before.map(|peer| peer.voter).filter(|old| *old != voter);
        self.ended.extend(ended);
        // Others may have told of one there that has never been in contact.
        let before = self
            .addresses
            .iter()
            .filter(|(id, at)| **id != voter && *at == address);
        self.ended.extend(before.map(|(id, _)| *id));
        self.ended.remove(&voter);
        self.addresses.insert(voter, address.to_owned());
        if ended.is_some() {
            self.remembered.remove(&place);
        }
        Introduced {
            ended,
            replaced: old.filter(|old| Some(*old) != connection),
            is_new: same.is_none_or(|same| same.connection.is_none() || same.group != group),
        }
    }

    /// A connection is gone. Returns the process whose it was.
    pub(super) fn closed(&mut self, now: Mono, connection: ConnId) -> Option<VoterId> {
        let mut peers = self.peers.values_mut();
        let peer = peers.find(|peer| peer.connection == Some(connection))?;
        (peer.connection, peer.absent_since) = (None, now);
        Some(peer.voter)
    }

    /// Since when a process has no connection; `None` if it has one.
    pub(super) fn absent_since(&self, voter: VoterId) -> Option<Mono> {
        let mut peers = self.peers.values();
        match peers.find(|peer| peer.voter == voter) {
            Some(peer) => peer.connection.is_none().then_some(peer.absent_since),
            None => Some(Mono::ZERO),
        }
    }

    /// Forgets the process at a place, if it is neither in contact nor needed.
    pub(super) fn forget_absent(
        &mut self,
        place: usize,
        is_needed: impl Fn(VoterId) -> bool,
    ) -> bool {
        let peer = self.peers.get(&place);
        let is_absent = |peer: &&Peer| peer.connection.is_none() && !is_needed(peer.voter);
        let is_forgotten = peer.filter(is_absent).is_some();
        if is_forgotten {
            self.peers.remove(&place);
        }
        is_forgotten
    }

    /// The process at the other end of a connection has said that it is about to end.
    pub(super) fn leaves(&mut self, connection: ConnId) {
        let mut peers = self.peers.values_mut();
        let peer = peers.find(|peer| peer.connection == Some(connection));
        if let Some(peer) = peer {
            peer.leaves = true;
        }
    }

    /// The processes that have said that they are about to end, with their places.
    pub(super) fn all_leaving(&self) -> impl Iterator<Item = (usize, VoterId)> {
        let leaving = self.peers.iter().filter(|(_, peer)| peer.leaves);
        leaving.map(|(place, peer)| (*place, peer.voter))
    }

    /// Whether a process has ended, or has said that it is about to and is not in contact any more.
    pub(super) fn has_ended(&self, voter: VoterId) -> bool {
        let left = |peer: &Peer| peer.voter == voter && peer.leaves && peer.connection.is_none();
        self.ended.contains(&voter) || self.peers.values().any(left)
    }

    /// The process at the other end of a connection.
    pub(super) fn at(&self, connection: ConnId) -> Option<Peer> {
        let mut peers = self.peers.values();
        let found = peers.find(|peer| peer.connection == Some(connection));
        found.copied()
    }

    /// The process at the other end of a connection, which is in no group, tells of what it remembers.
    pub(super) fn reports(&mut self, connection: ConnId, others: Vec<String>) {
        let mut peers = self.peers.iter();
        let peer = peers.find(|(_, peer)| peer.connection == Some(connection));
        if let Some((place, _)) = peer {
            self.remembered.insert(*place, others);
        }
    }

    /// The members that the process at a place remembers.
    pub(super) fn remembers(&self, place: usize) -> &[String] {
        self.remembered.get(&place).map_or(&[], Vec::as_slice)
    }

    /// Whether it has told of that.
    pub(super) fn has_reported(&self, place: usize) -> bool {
        self.remembered.contains_key(&place)
    }

    /// Whether another process has taken the place of this one, which has ended therefore.
    pub(super) fn is_replaced(&self, voter: VoterId) -> bool {
        let is_there = |peer: &Peer| {
            let address = self.addresses.get(&peer.voter);
            peer.voter != voter
                && peer.connection.is_some()
                && address == self.addresses.get(&voter)
        };
        let is_known = self.addresses.contains_key(&voter);
        self.ended.contains(&voter) || is_known && self.peers.values().any(is_there)
    }

    /// The address of a process, that may have ended.
    pub(super) fn address(&self, voter: VoterId) -> Option<&str> {
        self.addresses.get(&voter).map(String::as_str)
    }

    /// Somebody else knows the address of a process.
    pub(super) fn is_at(&mut self, voter: VoterId, address: &str) {
        self.addresses.insert(voter, address.to_owned());
    }

    /// The place of a process.
    pub(super) fn place(&self, voter: VoterId) -> Option<usize> {
        let mut peers = self.peers.iter();
        let found = peers.find(|(_, peer)| peer.voter == voter);
        found.map(|(place, _)| *place)
    }

    /// The process at a place, if it is in contact.
    pub(super) fn present(&self, place: usize) -> Option<Peer> {
        let peer = self.peers.get(&place).copied();
        peer.filter(|peer| peer.connection.is_some())
    }

    /// The processes that are in contact, with their places.
    pub(super) fn all_present(&self) -> impl Iterator<Item = (usize, Peer)> {
        let peers = self.peers.iter().map(|(place, peer)| (*place, *peer));
        peers.filter(|(_, peer)| peer.connection.is_some())
    }

    /// Every process that is, or could be, a member of the group.
    ///
    /// A member that has said so is gone, and no other one is waited for. It has ended, too, if
    /// another process has its place, or if it `is_gone`, for so long.
    pub(super) fn candidates(
        &self,
        group: u128,
        own: (usize, VoterId, bool),
        members: &BTreeSet<VoterId>,
        is_gone: impl Fn(VoterId) -> Option<Duration>,
        whereabouts: impl Fn(usize) -> Whereabouts,
    ) -> Vec<Candidate> {
        let candidate = |id, standing, place: usize, since, is_store| {
            let Whereabouts {
                machine,
                network,
                position,
            } = whereabouts(place);
            Candidate {
                id,
                standing,
                is_store,
                has_workers: !is_store,
                machine,
                network,
                position,
                since,
            }
        };
        // Whether another process has its place does not say for how long it has been gone.
        let absent = |voter: VoterId| match is_gone(voter) {
            Some(time) => Standing::Gone(time),
            None if self.ended.contains(&voter) => Standing::Gone(Duration::ZERO),
            None => Standing::Silent,
        };
        let mut candidates = vec![candidate(
            own.1,
            Standing::Present,
            own.0,
            Mono::ZERO,
            own.2,
        )];
        for (place, peer) in &self.peers {
            let standing = match peer.connection {
                _ if peer.leaves => Standing::Gone(Duration::MAX),
                Some(_) => Standing::Present,
                None => absent(peer.voter),
            };
            if peer.group == 0 || peer.group == group {
                candidates.push(candidate(
                    peer.voter,
                    standing,
                    *place,
                    peer.since,
                    peer.is_store,
                ));
            }
        }
        for member in members {
            if candidates.iter().all(|known| known.id != *member) {
                let standing = absent(*member);
                candidates.push(candidate(*member, standing, usize::MAX, Mono::ZERO, false));
            }
        }
        candidates
    }
}
