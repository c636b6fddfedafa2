//! A voter's view of its group, made when somebody asks; and the little that is noted for it meanwhile.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_consensus::{Role as Part, VoterId, membership};
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};

use super::open::OpenGroup;
use super::{Group, Voter, cluster_of};
use rdzv_rendezvous_proto::group::{GroupView, Role, VoterState, VoterView, Wait};

/// Notes for the view.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// When each process at another place was last heard of.
    heard: BTreeMap<VoterId, Mono>,
    /// The last term with a leader, and its group.
    led: Option<(u64, u64)>,
    elections: u64,
    /// Times that this process went on from its note after the end of all voters.
    pub(super) takeovers: u64,
}

impl Voter {
    /// The process at the other end of a connection has said something.
    pub(super) fn note_heard(&mut self, now: Now, from: ConnId) {
        let Some(peer) = self.peers.at(from) else {
            return;
        };
        let heard = &mut self.seen.heard;
        if heard.insert(peer.voter, now.mono).is_none() {
            // The one before at its place has ended.
            heard.retain(|voter, _| self.peers.place(*voter).is_some());
        }
    }

    /// The part of this voter in a group may be another one than before.
    pub(super) fn note_election(&mut self, cluster: u64, part: &Part) {
        let led = Some((cluster, part.term));
        if part.leader.is_some() && self.seen.led != led {
            self.seen.led = led;
            self.seen.elections += 1;
        }
    }

    /// The group as this voter sees it now.
    pub fn view(&self, now: Now) -> GroupView {
        let group = self.group.as_ref();
        GroupView {
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

    /// The endpoints of those that vote, as far as they are known.
    pub fn voters(&self) -> Vec<String> {
        let group = self.group.as_ref();
        let voters = group.into_iter();
        let voters = voters.flat_map(|group| &group.consensus.configuration().voters);
        let mut places: Vec<usize> = voters.filter_map(|id| self.place_of(*id)).collect();
        places.sort_unstable();
        places.into_iter().map(|at| self.endpoint(at)).collect()
    }

    fn own_role(&self, group: &Group) -> Role {
        match group.consensus.configuration().voters.contains(&self.id) {
            _ if self.coordinates() => Role::Coordinator,
            true => Role::Voter,
            false => Role::Learner,
        }
    }

    fn members(&self, now: Now, group: &Group) -> Vec<VoterView> {
        let members = group.consensus.configuration().members();
        let mut members: Vec<_> = members
            .into_iter()
            .map(|id| (self.place_of(id), id))
            .collect();
        // Those of which nobody knows where they are stand at the end.
        members.sort_by_key(|(place, id)| (place.is_none(), *place, *id));
        let views = members.into_iter().map(|(place, id)| VoterView {
            id: Some(id.number()),
            address: place.map(|place| self.endpoint(place)),
            state: self.state(now, group, id),
            last_heard: (self.seen.heard.get(&id)).map(|heard| now.mono.since(*heard)),
            lag: group.consensus.lag(id),
        });
        views.collect()
    }

    pub(super) fn place_of(&self, id: VoterId) -> Option<usize> {
        match id == self.id {
            true => Some(self.settings.own),
            false => self.peers.place(id),
        }
    }

    fn state(&self, now: Now, group: &Group, id: VoterId) -> VoterState {
        let part = group.consensus.role();
        let leads = part.leader == Some(id);
        // Those who follow say something to the one who leads, and nobody else has to.
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

    /// Whether a process has said something in the time in which a machine that is there does.
    fn is_heard(&self, now: Now, id: VoterId) -> bool {
        let heard = self.seen.heard.get(&id);
        heard.is_some_and(|heard| now.mono.since(*heard) < self.settings.node_timeout)
    }

    /// The processes that are in contact, this one among them.
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

    /// For what this process waits.
    fn wait(&self, now: Now) -> Option<Wait> {
        if let Some(coordinator) = &self.coordinator {
            return coordinator.waits(now);
        }
        let group = self.group.as_ref().filter(|_| !self.has_retired);
        let Some(group) = group else {
            return self.wait_for_all();
        };
        // Where nobody leads, all stand for election: who is there says something.
        let (configuration, mut alive) = (group.consensus.configuration(), self.all_alive());
        alive.retain(|id| *id == self.id || self.is_heard(now, *id));
        let has_majority = configuration.is_majority(&alive);
        let voters = &configuration.voters;
        // Agents know more of an only coordinator that is gone: for how long, and why.
        if group.consensus.role().leader.is_some() || voters.len() <= 1 || has_majority {
            return None;
        }
        let missing = voters.difference(&alive);
        let mut missing: Vec<_> = missing.map(|id| (self.place_of(*id), *id)).collect();
        missing.sort_unstable();
        let missing = missing.into_iter().map(|(place, id)| match place {
            Some(place) => self.endpoint(place),
            None => format!("voter {:016x}", id.number()),
        });
        let present = voters.intersection(&alive).count();
        Some(Wait::for_voters(present, voters.len(), missing.collect()))
    }

    /// A group is founded, or goes on from what its voters remember, when a process is at each place. One that has been asked
    /// into a group, or has only learned in it, waits as the agent that it is.
    fn wait_for_all(&self) -> Option<Wait> {
        let has_voted = |open: &OpenGroup| open.memory.as_ref().is_some_and(|memory| memory.votes);
        if self.open.as_ref().is_some_and(|open| !has_voted(open)) {
            return None;
        }
        let places = 0..self.settings.places.len();
        let missing: Vec<String> = places
            .filter(|place| *place != self.settings.own && self.peers.present(*place).is_none())
            .map(|place| self.endpoint(place))
            .collect();
        let of = self.settings.places.len();
        let is_waiting = !self.has_retired && !missing.is_empty();
        is_waiting.then(|| Wait::for_voters(of - missing.len(), of, missing))
    }
}
