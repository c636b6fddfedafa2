//! Membership of a group: founding, invitations, replacements, and lost groups.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdzv_consensus::membership::{self, MembershipStep as NextChange, MembershipView};
use rdzv_consensus::wire::ControlFrame;
use rdzv_consensus::{self as consensus, Consensus, VoterId};
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};

use super::open::OpenGroup;
use super::{Group, GroupId, LOST_AFTER, REVIEW, Voter};
use crate::peers::{Peer, Whereabouts};
use crate::{Fact, Output};

/// Time without a decision after which a coordinator hands over to a store.
///
/// This applies to a coordinator that runs beside an agent.
const QUIET: Duration = Duration::from_secs(1);

/// Maximum number of unsuitable endpoints that are logged.
const MOST_UNSUITABLE: usize = 16;

impl Voter {
    /// Handles the introduction of the process at another endpoint.
    ///
    /// The introduction contains its endpoint, and the run of its group if agents may join that
    /// group.
    pub(super) fn introduced(
        &mut self,
        now: Now,
        from: ConnId,
        (address, run): (&str, Option<&str>),
        peer: Peer,
    ) {
        let (voter, group) = (peer.voter, peer.group);
        if self.open.as_ref().map(OpenGroup::run) != run {
            let why = "it is a voter of another run, or has another list of endpoints";
            self.unsuitable(address, why);
            return self.close(from, why);
        }
        let index = if self.open.is_some() {
            self.call_at(address)
        } else {
            (self.settings.endpoints.iter()).position(|endpoint| endpoint == address)
        };
        let Some(index) = index.filter(|index| *index != self.settings.own) else {
            let why = if self.open.is_some() {
                "it has the endpoint of this voter, or there are too many endpoints"
            } else {
                "its endpoint is not in the list of voters; start all agents with the same list"
            };
            self.unsuitable(address, why);
            return self.close(from, why);
        };
        let theirs = (peer.rounds, peer.votes);
        let new = self.peers.introduce(index, address, peer);
        if let Some(old) = new.replaced {
            self.dismiss(old, "the process at its endpoint has another connection");
        }
        if let Some(ended) = new.ended {
            self.consent(now, consensus::Input::PeerDown(ended));
        }
        if new.is_new {
            self.tell_newcomer(index);
        }
        if group != 0 && group == self.group_id() {
            if new.is_new {
                self.consent(now, consensus::Input::PeerUp(voter));
            }
        } else if self.group.is_some() && self.open.is_some() {
            self.meets(now, index, group, theirs);
        } else if group != 0 && self.group.is_some() {
            self.unsuitable(address, "it is in another group");
        }
        self.found_if_all_are_here(now);
        self.take_over_if_all_are_here(now);
    }

    /// Logs an unsuitable process only once, because such a process reconnects.
    fn unsuitable(&mut self, address: &str, why: &'static str) {
        let is_known = self.unsuitable.contains(address);
        if is_known || self.unsuitable.len() >= MOST_UNSUITABLE {
            return;
        }
        let endpoint = address.to_owned();
        self.unsuitable.insert(endpoint.clone());
        self.outbox
            .push(Output::Log(Fact::Unsuitable { endpoint, why }));
    }

    /// Founds a group if all conditions hold.
    ///
    /// This process must be the founder, and every other endpoint must have reported that it is in
    /// no group.
    fn found_if_all_are_here(&mut self, now: Now) {
        let is_founder = self.open.is_none() && self.settings.own == 0;
        if self.group.is_some() || !is_founder || self.has_retired {
            return;
        }
        let mut voters = vec![self.id];
        for index in 1..self.settings.endpoints.len() {
            let peer = self.peers.present(index).filter(|peer| peer.group == 0);
            let Some(peer) = peer else {
                return;
            };
            self.epoch = self.epoch.max(peer.epoch);
            voters.push(peer.voter);
        }
        let cluster = self.random.u64(1..);
        self.bootstrap(now, GroupId::from(cluster), voters);
    }

    /// Enters a new group as one of its first voters.
    fn bootstrap(&mut self, now: Now, id: GroupId, voters: Vec<VoterId>) {
        let (own, settings) = (self.id, self.settings.consensus());
        let consensus = Consensus::bootstrap(now, settings, own, &voters, &[], 1);
        self.outbox.push(Output::Log(Fact::Founded {
            voters: self.settings.endpoints.clone(),
        }));
        self.enter(id, consensus, voters);
    }

    pub(super) fn enter(&mut self, id: GroupId, consensus: Consensus, founders: Vec<VoterId>) {
        if let Some(open) = &mut self.open {
            open.memory = None;
        }
        self.group = Some(Group {
            id,
            voters: consensus.configuration().voters.clone(),
            have_voted: consensus.configuration().voters.clone(),
            consensus,
            founders,
            inviter: String::new(),
            runs: BTreeMap::new(),
            announced: None,
            leader: None,
        });
        self.greet();
    }

    /// Handles an invitation of another voter to a group.
    pub(super) fn invited(
        &mut self,
        now: Now,
        from: ConnId,
        (group, epoch): (GroupId, u32),
        voter_index: u8,
        voters: &[VoterId],
    ) {
        let Some(peer) = self.peers.at(from) else {
            return self.close(from, "it sent an invitation before it introduced itself");
        };
        if self.group.is_some() || self.has_retired || group == 0 || peer.group != group {
            return;
        }
        if self.open.is_none() {
            self.epoch = epoch;
        } else if !self.may_join((group, peer.rounds)) {
            return;
        }
        if !voters.contains(&self.id) {
            let settings = self.settings.consensus();
            let consensus = Consensus::join(now, settings, self.id, voter_index);
            let inviter = self.peers.address(peer.voter).unwrap_or_default();
            let inviter = inviter.to_owned();
            self.enter(group, consensus, Vec::new());
            if let Some(group) = &mut self.group {
                group.inviter = inviter;
            }
            self.write_note(None);
            return self.consent(now, consensus::Input::PeerUp(peer.voter));
        }
        let is_own = voters.get(self.settings.own) == Some(&self.id);
        if !is_own || voters.len() != self.settings.endpoints.len() {
            let address = self.endpoint(self.peers.index(peer.voter).unwrap_or(0));
            return self.unsuitable(
                &address,
                "it lists the voters in a different order; start all agents with the same list",
            );
        }
        self.bootstrap(now, group, voters.to_vec());
        self.consent(now, consensus::Input::PeerUp(peer.voter));
    }

    /// Invites connected processes that are in no group and belong to this one.
    pub(super) fn invite(&mut self) {
        let Some(group) = &self.group else {
            return;
        };
        let (leads, configuration) = (group.consensus.role().leads, group.consensus.appended());
        let mut invitations = Vec::new();
        for (at, peer) in self.peers.all_present().filter(|(_, peer)| peer.group == 0) {
            let mut founders = group.founders.iter();
            let founder = founders.position(|founder| *founder == peer.voter);
            let voter_index = configuration
                .voter_indices
                .get(&peer.voter)
                .filter(|_| leads);
            let (voter_index, voters) = match (founder, voter_index) {
                (Some(founder), _) => (founder as u8, group.founders.clone()),
                (None, Some(voter_index)) => {
                    let voters = group.voters.iter().copied();
                    let others = voters.filter(|voter| *voter != peer.voter);
                    (*voter_index, others.collect())
                }
                (None, None) => continue,
            };
            let invite = ControlFrame::Invite {
                cluster: group.id,
                epoch: u64::from(self.epoch),
                voter_index,
                voters,
            };
            invitations.push((at, invite));
        }
        for (index, frame) in invitations {
            self.send(index, &frame);
        }
    }

    /// `true` if the group needs work that no input will trigger.
    fn needs_review(&self, now: Now) -> bool {
        let Some(group) = self.group.as_ref().filter(|_| !self.has_retired) else {
            return false;
        };
        let mut present = self.peers.all_present();
        // A broken connection may lose an invitation, a vote or a command.
        self.gate.is_refused()
            || group.consensus.role().leader.is_none()
            || present.any(|(_, peer)| self.awaits_invitation(group, peer))
            || self.coordinates() && !self.is_settled(group, now)
            || self.awaits_agents()
    }

    /// `true` if the process is in no group and belongs to this one.
    fn awaits_invitation(&self, group: &Group, peer: Peer) -> bool {
        let is_member = self.open.is_none() || group.consensus.appended().has(peer.voter);
        peer.group == 0 && is_member
    }

    /// Schedules the next review of the group, if one is needed.
    pub(super) fn plan_review(&mut self, now: Now) {
        self.review = if self.needs_review(now) {
            self.review.or(Some(now.mono + REVIEW))
        } else {
            None
        };
    }

    /// `true` if exactly the right members vote and learn.
    fn is_settled(&self, group: &Group, now: Now) -> bool {
        if self.open.is_some() {
            return self.is_open_settled(group, now.mono);
        }
        let configuration = group.consensus.configuration();
        let mut leaving = self.peers.all_leaving();
        let staying = self.peers.all_present().filter(|(_, peer)| !peer.leaves);
        let staying: Vec<VoterId> = staying.map(|(_, peer)| peer.voter).collect();
        let is_expected = match (configuration.voters.len(), &staying[..]) {
            // Beside a single voter, the only other process learns.
            (1, [other]) => configuration.has(*other),
            _ => {
                configuration.learners.is_empty()
                    && staying.iter().all(|it| configuration.voters.contains(it))
            }
        };
        is_expected && leaving.all(|(_, voter)| !configuration.has(voter))
    }

    /// Requests the next change of members that is needed; only at the leader.
    ///
    /// A new process votes in place of one that has ended, and a process that leaves is removed. A
    /// leader that leaves hands over.
    pub(super) fn change_members(&mut self, now: Now) {
        let Some(group) = self.group.as_ref().filter(|_| self.coordinator.is_some()) else {
            return;
        };
        let leader_ends = self.ending.is_some();
        if group.consensus.is_changing() || !leader_ends && self.is_settled(group, now) {
            return;
        }
        let configuration = group.consensus.configuration();
        let own = (self.settings.own, self.id, self.settings.is_store);
        let members = configuration.members();
        let is_full = self.peers.all_present().count() + 1 == self.settings.endpoints.len();
        let is_gone = |member| {
            if self.open.is_some() {
                self.gone_for(now.mono, member)
            } else {
                is_full.then_some(Duration::ZERO)
            }
        };
        let whereabouts = |index: usize| {
            if self.open.is_some() {
                OpenGroup::whereabouts(&self.endpoint(index))
            } else {
                Whereabouts {
                    machine: index as u64,
                    network: index as u64,
                    position: u8::try_from(index).ok(),
                }
            }
        };
        let candidates = (self.peers).candidates(group.id, own, &members, is_gone, whereabouts);
        let is_caught_up = |member: &VoterId| group.consensus.is_caught_up(*member);
        let caught_up = members.iter().copied().filter(is_caught_up);
        let next = membership::next(&MembershipView {
            leader: self.id,
            leader_ends,
            configuration,
            candidates: &candidates,
            caught_up: &caught_up.collect(),
            most: self.most(now.mono),
        });
        match next {
            NextChange::Change(change) => self.consent(now, consensus::Input::Change(&change)),
            NextChange::HandOver(voter) => {
                self.consent(now, consensus::Input::Transfer(Some(voter)));
            }
            NextChange::Nothing(_) => {
                // A learner may be ready in a moment.
                let is_last = self.peers.all_present().all(|(_, peer)| peer.leaves);
                if leader_ends && is_last {
                    self.give_up_hand_over();
                }
            }
        }
    }

    /// Returns the store that should coordinate instead of this agent, if any.
    fn better_coordinator(&self) -> Option<VoterId> {
        let group = self.group.as_ref().filter(|_| self.coordinates())?;
        if self.settings.is_store || self.hands_over() || group.consensus.is_changing() {
            return None;
        }
        let voters = &group.consensus.configuration().voters;
        let stores = self.peers.all_present().map(|(_, peer)| peer);
        let stores = stores.filter(|peer| peer.is_store && !peer.leaves);
        let can_lead = |id: VoterId| voters.contains(&id) && group.consensus.is_caught_up(id);
        stores.map(|peer| peer.voter).find(|id| can_lead(*id))
    }

    /// Returns the time of the handover to a store, if there is a suitable one.
    pub(super) fn hand_over_due(&self) -> Option<Mono> {
        self.better_coordinator().map(|_| self.decided + QUIET)
    }

    /// Hands over to a store that has the log.
    ///
    /// Afterwards one death costs either a coordinator or workers.
    pub(super) fn hand_over_to_store(&mut self, now: Now) {
        if let Some(store) = self.better_coordinator() {
            self.consent(now, consensus::Input::Transfer(Some(store)));
        }
    }

    /// Leaves a group that can never decide again.
    ///
    /// With a list, this process then behaves as if it had restarted.
    pub(super) fn give_up_if_lost(&mut self, now: Now) {
        if self.open.is_some() {
            return self.leave_if_lost(now);
        }
        let Some(group) = &self.group else {
            return;
        };
        let (alive, configuration) = (self.all_connected(), group.consensus.configuration());
        // A member that has not learned the voters yet has no majority.
        let has_majority = !configuration.voters.is_empty() && configuration.is_majority(&alive);
        let is_lost = alive.len() == self.settings.endpoints.len()
            && group.consensus.role().leader.is_none()
            && !has_majority;
        if self.is_lost_for_good(now, is_lost) {
            self.epoch = self.epoch.saturating_add(1);
            self.outbox.push(Output::Log(Fact::GaveUp));
            self.leave_group(None);
            self.found_if_all_are_here(now);
        }
    }

    /// Returns the ids of all connected processes, including this one.
    pub(super) fn all_connected(&self) -> BTreeSet<VoterId> {
        let others = self.peers.all_present().map(|(_, peer)| peer.voter);
        others.chain([self.id]).collect()
    }

    /// `true` if the group has looked lost for [`LOST_AFTER`].
    pub(super) fn is_lost_for_good(&mut self, now: Now, is_lost: bool) -> bool {
        self.lost_since = if is_lost && self.ending.is_none() {
            self.lost_since.or(Some(now.mono))
        } else {
            None
        };
        let is_over = |since| now.mono.since(since) >= LOST_AFTER;
        self.lost_since.is_some_and(is_over)
    }
}
