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
    pub(super) cluster: u64,
    /// The number of groups that were lost before, as far as it knows.
    pub(super) epoch: u32,
    /// It is no agent.
    pub(super) is_store: bool,
    /// Its connection, as long as there is one.
    pub(super) connection: Option<ConnId>,
    /// When it was first heard of.
    since: Mono,
    /// It has said that it is about to end.
    pub(super) leaves: bool,
}

/// All places but this process' own.
#[derive(Debug, Default)]
pub(super) struct Peers {
    peers: BTreeMap<usize, Peer>,
    /// Processes that have ended, because others have their places.
    ended: BTreeSet<VoterId>,
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
    pub(super) fn introduce(
        &mut self,
        now: Mono,
        place: usize,
        connection: ConnId,
        (voter, cluster, epoch): (VoterId, u64, u32),
        is_store: bool,
    ) -> Introduced {
        let before = self.peers.get(&place).copied();
        let same = before.filter(|peer| peer.voter == voter);
        let peer = Peer {
            voter,
            cluster,
            epoch,
            is_store,
            connection: Some(connection),
            since: same.map_or(now, |peer| peer.since),
            leaves: same.is_some_and(|peer| peer.leaves),
        };
        self.peers.insert(place, peer);
        let old = before.and_then(|peer| peer.connection);
        let ended = before.map(|peer| peer.voter).filter(|old| *old != voter);
        self.ended.extend(ended);
        Introduced {
            ended,
            replaced: old.filter(|old| *old != connection),
            is_new: same.is_none_or(|same| same.connection.is_none() || same.cluster != cluster),
        }
    }

    /// A connection is gone. Returns the process whose it was.
    pub(super) fn closed(&mut self, connection: ConnId) -> Option<VoterId> {
        let mut peers = self.peers.values_mut();
        let peer = peers.find(|peer| peer.connection == Some(connection))?;
        peer.connection = None;
        Some(peer.voter)
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
    /// A member that has said so is gone, and no other one is waited for. It has ended, too, if another process has its place. Where all places have a process that is in contact, that
    /// is so for every member that is none of them.
    pub(super) fn candidates(
        &self,
        cluster: u64,
        own: (usize, VoterId, bool),
        members: &BTreeSet<VoterId>,
        places: usize,
    ) -> Vec<Candidate> {
        let candidate = |id, standing, place: usize, since, is_store| Candidate {
            id,
            standing,
            is_store,
            has_workers: !is_store,
            machine: place as u64,
            network: place as u64,
            since,
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
                None => Standing::Silent,
            };
            if peer.cluster == 0 || peer.cluster == cluster {
                candidates.push(candidate(
                    peer.voter,
                    standing,
                    *place,
                    peer.since,
                    peer.is_store,
                ));
            }
        }
        let all_present = self.all_present().count() + 1 == places;
        for member in members {
            if candidates.iter().all(|known| known.id != *member) {
                let standing = match all_present || self.ended.contains(member) {
                    true => Standing::Gone(Duration::ZERO),
                    false => Standing::Silent,
                };
                candidates.push(candidate(*member, standing, usize::MAX, Mono::ZERO, false));
            }
        }
        candidates
    }
}
