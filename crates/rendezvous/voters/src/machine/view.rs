//! A voter's view of its group, built on request.
//!
//! This includes the few observations that are recorded for the view.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_consensus::{Role as Part, VoterId, membership};
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};

use super::open::OpenGroup;
use super::{Group, Voter, cluster_of};
use rdzv_rendezvous_proto::group::{VoterGroupView, VoterRole, VoterState, VoterView, Wait};

/// Observations that only the view needs.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Time of the last message from each process at another endpoint.
    heard: BTreeMap<VoterId, Mono>,
    /// Cluster and term of the last election that had a winner.
    led: Option<(u64, u64)>,
    elections: u64,
    /// Number of times that this process took over its group.
    pub(super) takeovers: u64,
}

impl Voter {
    /// Records the time of a message from the process at the other end.
    pub(super) fn note_heard(&mut self, now: Now, from: ConnId) {
        let Some(peer) = self.peers.at(from) else {
            return;
        };
        let heard = &mut self.seen.heard;
        if heard.insert(peer.voter, now.mono).is_none() {
            // The previous process at its endpoint has ended.
            heard.retain(|voter, _| self.peers.index(*voter).is_some());
        }
    }

    /// Counts an election if the group has a leader in a new term.
    pub(super) fn note_election(&mut self, cluster: u64, part: &Part) {
        let led = Some((cluster, part.term));
        if part.leader.is_some() && self.seen.led != led {
            self.seen.led = led;
            self.seen.elections += 1;
        }
    }

    /// Returns the group as this voter sees it now.
    pub fn view(&self, now: Now) -> VoterGroupView {
        let group = self.group.as_ref();
        VoterGroupView {
            cluster: group.map(|group| cluster_of(group.id)),
            epoch: group.map(|group| group.consensus.role().term),
            term: group.map(|group| group.consensus.role().term),
            role: group.map(|group| self.own_role(group)),
            voters: group.map_or_else(Vec::new, |group| self.members(now, group)),
            target: self.target(now),
            coordinator: self.coordinator().map(str::to_owned),
            waiting: self.wait(now),
            elections: self.seen.elections,
            takeovers: u64::from(self.epoch) + self.seen.takeovers,
        }
    }

    /// Returns the known endpoints of the voters.
    pub fn voters(&self) -> Vec<String> {
        let group = self.group.as_ref();
        let voters = group.into_iter();
        let voters = voters.flat_map(|group| &group.consensus.configuration().voters);
        let mut indices: Vec<usize> = voters.filter_map(|id| self.index_of(*id)).collect();
        indices.sort_unstable();
        indices.into_iter().map(|at| self.endpoint(at)).collect()
    }

    fn own_role(&self, group: &Group) -> VoterRole {
        match group.consensus.configuration().voters.contains(&self.id) {
            _ if self.coordinates() => VoterRole::Coordinator,
            true => VoterRole::Voter,
            false => VoterRole::Learner,
        }
    }

    fn members(&self, now: Now, group: &Group) -> Vec<VoterView> {
        let members = group.consensus.configuration().members();
        let mut members: Vec<_> = members
            .into_iter()
            .map(|id| (self.index_of(id), id))
            .collect();
        // Members at unknown endpoints come last.
        members.sort_by_key(|(index, id)| (index.is_none(), *index, *id));
        let views = members.into_iter().map(|(index, id)| VoterView {
            id: Some(id.number()),
            address: index.map(|index| self.endpoint(index)),
            state: self.state(now, group, id),
            last_heard: (self.seen.heard.get(&id)).map(|heard| now.mono.since(*heard)),
            lag: group.consensus.lag(id),
        });
        views.collect()
    }

    pub(super) fn index_of(&self, id: VoterId) -> Option<usize> {
        if id == self.id {
            Some(self.settings.own)
        } else {
            self.peers.index(id)
        }
    }

    fn state(&self, now: Now, group: &Group, id: VoterId) -> VoterState {
        let part = group.consensus.role();
        let leads = part.leader == Some(id);
        // Regular messages pass only between the leader and each member. Only their absence means
        // silence.
        let is_quiet = (part.leads || leads) && !self.is_heard(now, id);
        let is_here = id == self.id || self.is_present(id) && !is_quiet;
        if self.peers.has_ended(id) {
            VoterState::Ended
        } else if !is_here {
            VoterState::Silent
        } else if leads {
            VoterState::Leader
        } else if group.consensus.configuration().learners.contains(&id) {
            VoterState::Learner
        } else {
            VoterState::Follower
        }
    }

    fn is_present(&self, id: VoterId) -> bool {
        self.peers.all_present().any(|(_, peer)| peer.voter == id)
    }

    /// `true` if the process has sent a message within `node_timeout`.
    fn is_heard(&self, now: Now, id: VoterId) -> bool {
        let heard = self.seen.heard.get(&id);
        heard.is_some_and(|heard| now.mono.since(*heard) < self.settings.node_timeout)
    }

    /// Ids of the connected processes that stay, including this one.
    pub(super) fn all_alive(&self) -> BTreeSet<VoterId> {
        let others = self.peers.all_present().filter(|(_, peer)| !peer.leaves);
        let others = others.map(|(_, peer)| peer.voter);
        others.chain([self.id]).collect()
    }

    fn target(&self, now: Now) -> usize {
        let mut candidates = self.all_alive();
        if let Some(group) = &self.group {
            let members = group.consensus.configuration().members();
            candidates.extend(members.into_iter().filter(|it| !self.peers.has_ended(*it)));
        }
        membership::target(candidates.len(), self.most(now.mono))
    }

    /// Returns the reason why this process waits, if it does.
    fn wait(&self, now: Now) -> Option<Wait> {
        if let Some(coordinator) = &self.coordinator {
            return coordinator.waits(now);
        }
        let group = self.group.as_ref().filter(|_| !self.has_retired);
        let Some(group) = group else {
            return self.wait_for_all();
        };
        // Without a leader all voters campaign, so every live voter sends messages.
        let (configuration, mut alive) = (group.consensus.configuration(), self.all_alive());
        alive.retain(|id| *id == self.id || self.is_heard(now, *id));
        let has_majority = configuration.is_majority(&alive);
        let voters = &configuration.voters;
        // Agents know more about the loss of the only coordinator: its time and its cause.
        if group.consensus.role().leader.is_some() || voters.len() <= 1 || has_majority {
            return None;
        }
        let missing = voters.difference(&alive);
        let mut missing: Vec<_> = missing.map(|id| (self.index_of(*id), *id)).collect();
        missing.sort_unstable();
        let missing = missing.into_iter().map(|(index, id)| match index {
            Some(index) => self.endpoint(index),
            None => format!("voter {:016x}", id.number()),
        });
        let present = voters.intersection(&alive).count();
        Some(Wait::for_voters(present, voters.len(), missing.collect()))
    }

    /// Returns a wait for the processes that are missing at the endpoints.
    ///
    /// Founding a group needs a process at each endpoint. Continuing one from memory needs one at
    /// the address of each remembered voter. A process that was invited, or that has only learned,
    /// waits like any other agent.
    fn wait_for_all(&self) -> Option<Wait> {
        let has_voted = |open: &OpenGroup| open.memory.as_ref().is_some_and(|memory| memory.votes);
        if self.open.as_ref().is_some_and(|open| !has_voted(open)) {
            return None;
        }
        let indices = 0..self.settings.endpoints.len();
        let missing: Vec<String> = indices
            .filter(|index| *index != self.settings.own && self.peers.present(*index).is_none())
            .map(|index| self.endpoint(index))
            .collect();
        let of = self.settings.endpoints.len();
        let is_waiting = !self.has_retired && !missing.is_empty();
        is_waiting.then(|| Wait::for_voters(of - missing.len(), of, missing))
    }
}
