//! Processes at the endpoints of the group, as they have introduced themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdzv_consensus::VoterId;
use rdzv_consensus::membership::{Candidate, MemberStanding};
use rdzv_core::ident::ConnId;
use rdzv_core::time::Mono;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) voter: VoterId,
    /// Id of the process's group; 0 if it is in no group.
    pub(super) group: u128,
    /// Number of groups that were lost before, as far as the process knows.
    pub(super) epoch: u32,
    /// Highest announced round that it knows plus 1; 0 with a list.
    ///
    /// `applied` is the position in the log that it has applied or remembers. `votes` is `true` if
    /// it votes there.
    pub(super) rounds: u32,
    pub(super) applied: (u64, u64),
    pub(super) votes: bool,
    /// `true` if no agent runs in the process.
    pub(super) is_store: bool,
    /// Connection of the process; `None` while there is none.
    pub(super) connection: Option<ConnId>,
    /// Time of its first introduction.
    pub(super) since: Mono,
    /// Time since which it has had no connection.
    pub(super) absent_since: Mono,
    /// `true` if it has announced its end.
    pub(super) leaves: bool,
}

/// Processes at all endpoints except that of this process.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<usize, Peer>,
    /// Processes that have ended, because other processes are at their endpoints.
    ended: BTreeSet<VoterId>,
    /// Addresses of processes, including those that have ended.
    addresses: BTreeMap<VoterId, String>,
    /// Other voters that the process at an endpoint remembers, by endpoint index.
    remembered: BTreeMap<usize, Vec<String>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Whereabouts {
    /// Machine; equal numbers are one machine.
    pub(super) machine: u64,
    /// Network; equal numbers are one network.
    pub(super) network: u64,
    /// Position in the list of the group, if there is a list.
    pub(super) position: Option<u8>,
}

/// Change that an introduction makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Introduced {
    /// The previous process at the endpoint, if there was another one.
    ///
    /// It has ended, because one process owns the endpoint.
    pub(super) ended: Option<VoterId>,
    /// The previous connection of that endpoint, if there was another one.
    pub(super) replaced: Option<ConnId>,
    /// `true` if the process had no connection before, or was in another group.
    pub(super) is_new: bool,
}

impl Peers {
    /// Adds or updates the process at an endpoint.
    pub(super) fn introduce(&mut self, index: usize, address: &str, mut peer: Peer) -> Introduced {
        let (voter, group, connection) = (peer.voter, peer.group, peer.connection);
        let before = self.peers.get(&index).copied();
        let same = before.filter(|peer| peer.voter == voter);
        if let Some(same) = same {
            (peer.since, peer.leaves) = (same.since, same.leaves);
        }
        self.peers.insert(index, peer);
        let old = before.and_then(|peer| peer.connection);
        let ended = before.map(|peer| peer.voter).filter(|old| *old != voter);
        self.ended.extend(ended);
        // Others may have reported a process at this address that was never connected.
        let before = self
            .addresses
            .iter()
            .filter(|(id, at)| **id != voter && *at == address);
        self.ended.extend(before.map(|(id, _)| *id));
        self.ended.remove(&voter);
        self.addresses.insert(voter, address.to_owned());
        if ended.is_some() {
            self.remembered.remove(&index);
        }
        Introduced {
            ended,
            replaced: old.filter(|old| Some(*old) != connection),
            is_new: same.is_none_or(|same| same.connection.is_none() || same.group != group),
        }
    }

    /// Handles a closed connection. Returns the process at its other end.
    pub(super) fn closed(&mut self, now: Mono, connection: ConnId) -> Option<VoterId> {
        let mut peers = self.peers.values_mut();
        let peer = peers.find(|peer| peer.connection == Some(connection))?;
        (peer.connection, peer.absent_since) = (None, now);
        Some(peer.voter)
    }

    /// Time since which a process has had no connection; `None` if it has one.
    pub(super) fn absent_since(&self, voter: VoterId) -> Option<Mono> {
        let mut peers = self.peers.values();
        match peers.find(|peer| peer.voter == voter) {
            Some(peer) => peer.connection.is_none().then_some(peer.absent_since),
            None => Some(Mono::ZERO),
        }
    }

    /// Forgets the process at an endpoint, if it is neither connected nor needed.
    pub(super) fn forget_absent(
        &mut self,
        index: usize,
        is_needed: impl Fn(VoterId) -> bool,
    ) -> bool {
        let peer = self.peers.get(&index);
        let is_absent = |peer: &&Peer| peer.connection.is_none() && !is_needed(peer.voter);
        let is_forgotten = peer.filter(is_absent).is_some();
        if is_forgotten {
            self.peers.remove(&index);
        }
        is_forgotten
    }

    /// Records that the process at the other end has announced its end.
    pub(super) fn leaves(&mut self, connection: ConnId) {
        let mut peers = self.peers.values_mut();
        let peer = peers.find(|peer| peer.connection == Some(connection));
        if let Some(peer) = peer {
            peer.leaves = true;
        }
    }

    /// Processes that have announced their end, with their endpoint indexes.
    pub(super) fn all_leaving(&self) -> impl Iterator<Item = (usize, VoterId)> {
        let leaving = self.peers.iter().filter(|(_, peer)| peer.leaves);
        leaving.map(|(index, peer)| (*index, peer.voter))
    }

    /// `true` if a process has ended, or has announced its end and is disconnected.
    pub(super) fn has_ended(&self, voter: VoterId) -> bool {
        let left = |peer: &Peer| peer.voter == voter && peer.leaves && peer.connection.is_none();
        self.ended.contains(&voter) || self.peers.values().any(left)
    }

    /// Returns the process at the other end of a connection.
    pub(super) fn at(&self, connection: ConnId) -> Option<Peer> {
        let mut peers = self.peers.values();
        let found = peers.find(|peer| peer.connection == Some(connection));
        found.copied()
    }

    /// Stores the voters that a process outside a group remembers.
    pub(super) fn reports(&mut self, connection: ConnId, others: Vec<String>) {
        let mut peers = self.peers.iter();
        let peer = peers.find(|(_, peer)| peer.connection == Some(connection));
        if let Some((index, _)) = peer {
            self.remembered.insert(*index, others);
        }
    }

    /// Voters that the process at an endpoint remembers.
    pub(super) fn remembers(&self, index: usize) -> &[String] {
        self.remembered.get(&index).map_or(&[], Vec::as_slice)
    }

    /// `true` if that process has reported its memory.
    pub(super) fn has_reported(&self, index: usize) -> bool {
        self.remembered.contains_key(&index)
    }

    /// `true` if another process has replaced `voter` at its endpoint.
    ///
    /// The process of `voter` has therefore ended.
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

    /// Address of a process, which may have ended.
    pub(super) fn address(&self, voter: VoterId) -> Option<&str> {
        self.addresses.get(&voter).map(String::as_str)
    }

    /// Stores the address of a process that another member reported.
    pub(super) fn is_at(&mut self, voter: VoterId, address: &str) {
        self.addresses.insert(voter, address.to_owned());
    }

    pub(super) fn index(&self, voter: VoterId) -> Option<usize> {
        let mut peers = self.peers.iter();
        let found = peers.find(|(_, peer)| peer.voter == voter);
        found.map(|(index, _)| *index)
    }

    /// Returns the process at an endpoint, if it is connected.
    pub(super) fn present(&self, index: usize) -> Option<Peer> {
        let peer = self.peers.get(&index).copied();
        peer.filter(|peer| peer.connection.is_some())
    }

    /// Connected processes with their endpoint indexes.
    pub(super) fn all_present(&self) -> impl Iterator<Item = (usize, Peer)> {
        let peers = self.peers.iter().map(|(index, peer)| (*index, *peer));
        peers.filter(|(_, peer)| peer.connection.is_some())
    }

    /// Returns every process that is, or could be, a member of the group.
    ///
    /// A member that has announced its end counts as lost, and its replacement need not wait. A
    /// member without a connection also counts as lost if another process is at its endpoint, or if
    /// `is_gone` returns a duration.
    pub(super) fn candidates(
        &self,
        group: u128,
        own: (usize, VoterId, bool),
        members: &BTreeSet<VoterId>,
        is_gone: impl Fn(VoterId) -> Option<Duration>,
        whereabouts: impl Fn(usize) -> Whereabouts,
    ) -> Vec<Candidate> {
        let candidate = |id, standing, index: usize, since, is_store| {
            let Whereabouts {
                machine,
                network,
                position,
            } = whereabouts(index);
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
        // A new process at the endpoint does not show when the old one has ended.
        let absent = |voter: VoterId| match is_gone(voter) {
            Some(time) => MemberStanding::Gone(time),
            None if self.ended.contains(&voter) => MemberStanding::Gone(Duration::ZERO),
            None => MemberStanding::Silent,
        };
        let mut candidates = vec![candidate(
            own.1,
            MemberStanding::Present,
            own.0,
            Mono::ZERO,
            own.2,
        )];
        for (index, peer) in &self.peers {
            let standing = match peer.connection {
                _ if peer.leaves => MemberStanding::Gone(Duration::MAX),
                Some(_) => MemberStanding::Present,
                None => absent(peer.voter),
            };
            if peer.group == 0 || peer.group == group {
                candidates.push(candidate(
                    peer.voter,
                    standing,
                    *index,
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
