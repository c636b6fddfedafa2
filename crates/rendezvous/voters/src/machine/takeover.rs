//! A group whose voters have all ended at once, and whose processes were started again: one of them goes on from its note.
//!
//! A process that was a member, or the process before it at its address, remembers the group: the
//! terms, the runs and the voters of the newest configuration in its log. It tells the others. When
//! every voter that any of them remembers has a process in contact that is in no group, no member
//! of before lives, since a listening socket has one owner. Then the process with the newest memory
//! founds a group of its own, in the same cluster and with later terms; the others join it.
//!
//! Where a member has lost its memory with its machine, the others need not know all that was
//! decided. It is then as after the end of a coordinator without a note: a round has to be reported
//! by all its participants, and the next one has a far higher number. That holds for all
//! coordinators of the new group, until a round is noted there: the notes of the old ones are
//! outdated.
//!
//! Nobody can miss a newer configuration in that way: it came into force when a majority of the one
//! before had it in their logs, so one of those that are accounted for remembers it. Nor do two go
//! on: where a process remembers an older configuration than others, with which it has no part in
//! the newer one, these have applied more of the log, and it knows of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rdzv_consensus::wire::Frame;
use rdzv_consensus::{Configuration, VoterId};
use rdzv_core::time::Now;

use super::{Group, Voter, cluster_of, draw};
use crate::{Fact, Output};
use rdzv_rendezvous_proto::Rule;
use rdzv_rendezvous_proto::coordinator::{Note, RunNote};

/// More terms than there can be after the last one that a member has noted.
const UNKNOWN_TERMS: u64 = 1000;

/// The memory of a group.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) cluster: u64,
    pub(super) term: u64,
    pub(super) runs: BTreeMap<String, RunNote>,
    /// `host:port` of the other voters; empty for one whose address is not known.
    pub(super) others: Vec<String>,
    /// The part of the log from which it is.
    pub(super) applied: (u64, u64),
    /// The process was a voter. One that learned can tell others of the voters, and not go on itself.
    pub(super) votes: bool,
}

impl Memory {
    pub(super) fn of_note(note: Note) -> Self {
        Self {
            cluster: note.authority.cluster,
            term: u64::from(note.authority.epoch),
            runs: note.runs,
            others: note.voters,
            applied: note.applied,
            votes: note.votes,
        }
    }

    /// The same, unless the process was no member.
    pub(super) fn of_member(note: Note) -> Option<Self> {
        let memory = Self::of_note(note);
        (memory.cluster != 0).then_some(memory)
    }

    /// Rounds of the run of the group may have been announced that it does not know. Every coordinator of the next group finds
    /// that in the notes, until another round is noted there.
    pub(super) fn outdate(&mut self, run: &str) {
        self.runs.entry(run.to_owned()).or_default();
        let open_runs = self.runs.values_mut().filter(|note| !note.closed);
        open_runs.for_each(|note| note.outdated = true);
    }

    /// The number of rounds that it knows, from 1.
    pub(super) fn rounds(&self) -> u32 {
        rounds(&self.runs)
    }
}

/// The highest round that was announced, and 1; 0 if none was.
pub(super) fn rounds(runs: &BTreeMap<String, RunNote>) -> u32 {
    let announced = runs
        .values()
        .filter(|note| !note.members.is_empty() || note.round > 0);
    let rounds = announced.map(|note| u32::try_from(note.round).unwrap_or(u32::MAX - 1));
    rounds.max().map_or(0, |round| round + 1)
}

/// The part of the log of a group that is applied: the number of logs before it, or of terms in them, and an index.
pub(super) fn applied(group: &Group) -> (u64, u64) {
    ((group.id >> 64) as u64, group.consensus.applied())
}

impl Voter {
    /// The memory of its group, or of the one before.
    pub(super) fn memory(&self, group: Option<&Group>) -> Option<Memory> {
        let open = self.open.as_ref()?;
        let Some(group) = group.or(self.group.as_ref()) else {
            return open.memory.clone();
        };
        Some(Memory {
            cluster: cluster_of(group.id),
            term: group.consensus.role().term,
            runs: group.runs.clone(),
            others: self.others(group),
            applied: applied(group),
            votes: self.votes(group),
        })
    }

    /// Whether it is a voter, as far as it knows.
    pub(super) fn votes(&self, group: &Group) -> bool {
        let votes = |configuration: &Configuration| configuration.is_voter(self.id);
        votes(group.consensus.appended()) || votes(group.consensus.configuration())
    }

    /// In place of a memory: where members of the group may be.
    pub(super) fn known_places(&self) -> Memory {
        let places = self.settings.places.iter().enumerate();
        let others = places.filter(|(at, place)| *at != self.settings.own && !place.is_empty());
        Memory {
            others: others.map(|(_, place)| place.clone()).collect(),
            ..Memory::default()
        }
    }

    /// The addresses of the other voters of a group; an empty one for each that is not known.
    fn others(&self, group: &Group) -> Vec<String> {
        let voters = |configuration: &Configuration| -> BTreeSet<VoterId> {
            let voters = configuration.voters.union(&configuration.outgoing);
            voters.copied().collect()
        };
        let mut all = voters(group.consensus.appended());
        all.extend(voters(group.consensus.configuration()));
        if all.is_empty() {
            // It has not learned the voters yet.
            return vec![group.inviter.clone()];
        }
        all.remove(&self.id);
        let address = |member: VoterId| self.peers.address(member).unwrap_or_default();
        let addresses = all.into_iter().map(address);
        // One at this address has ended.
        let own = self.endpoint(self.settings.own);
        let others = addresses.filter(|address| *address != own);
        others.map(str::to_owned).collect()
    }

    /// The part of its memory that it tells, with its greeting.
    pub(super) fn remembered(&self) -> Option<Frame> {
        let memory = self.open.as_ref()?.memory.as_ref()?;
        let others = memory.others.iter().map(|address| (None, address.clone()));
        (self.group.is_none()).then(|| Frame::Members(others.collect()))
    }

    /// The process with the newest memory goes on alone, if every member that anybody remembers is accounted for.
    pub(super) fn take_over_if_all_are_here(&mut self, now: Now) {
        if self.group.is_some() || self.has_retired {
            return;
        }
        let memory = self.open.as_ref().and_then(|open| open.memory.clone());
        let Some(mut memory) = memory.filter(|memory| memory.votes) else {
            return;
        };
        let mut needed: BTreeSet<String> = memory.others.iter().cloned().collect();
        let mut checked = BTreeSet::from([self.endpoint(self.settings.own)]);
        let mut is_partial = false;
        while let Some(address) = needed.pop_first() {
            if !checked.insert(address.clone()) {
                continue;
            }
            let mut places = self.settings.places.iter();
            let place = places.position(|place| !place.is_empty() && *place == address);
            let peer = place.and_then(|place| self.peers.present(place));
            let Some(peer) = peer.filter(|peer| peer.group == 0) else {
                if !self.settings.rules.has(Rule::MissingBlock) {
                    continue;
                }
                return;
            };
            // Of two with the same, a voter goes on, and of voters the one with the lower id.
            let theirs = (peer.applied, peer.votes, Reverse(peer.voter));
            let is_first = !self.settings.rules.has(Rule::NewestTakesOver)
                || theirs <= (memory.applied, true, Reverse(self.id));
            if !is_first {
                return;
            }
            if let Some(place) = place {
                needed.extend(self.peers.remembers(place).iter().cloned());
            }
            if peer.applied == (0, 0) {
                is_partial = true;
            } else if place.is_none_or(|place| !self.peers.has_reported(place)) {
                return;
            }
        }
        let counts = self.settings.rules.has(Rule::LostMayHaveKnown);
        if let Some(open) = self.open.as_mut().filter(|_| is_partial && counts) {
            open.begin_partial();
            memory.outdate(open.run());
        }
        // Others may have voted in terms of which this process does not know.
        let term = memory.term + UNKNOWN_TERMS;
        let memory = Memory { term, ..memory };
        self.outbox.push(Output::Log(Fact::TookOver));
        self.seen.takeovers += 1;
        self.go_on_alone(now, memory);
    }

    /// Leaves a group that can never decide again, as members of its majority have certainly ended. Its memory stays.
    pub(super) fn leave_if_lost(&mut self, now: Now) {
        let Some(group) = &self.group else { return };
        let alive = self.all_connected();
        let configuration = group.consensus.configuration();
        let mut voters = configuration.voters.union(&configuration.outgoing);
        let own = self.endpoint(self.settings.own);
        let was_here = |voter: VoterId| self.peers.address(voter) == Some(&own);
        let has_ended = |voter: VoterId| self.peers.is_replaced(voter) || was_here(voter);
        // Nobody needs one that learns.
        let is_needed = self.votes(group);
        let can_decide = configuration.is_majority(&alive)
            || !voters.all(|voter| alive.contains(voter) || has_ended(*voter));
        let is_lost = self.settings.rules.has(Rule::LostGroupsAreLeft)
            && group.consensus.role().leader.is_none()
            && !(is_needed && can_decide);
        if self.is_lost_for_good(now, is_lost) {
            let memory = self.memory(None);
            self.leave_group(memory);
            self.take_over_if_all_are_here(now);
        }
    }

    /// Takes part in no group from here on, under another id.
    pub(super) fn leave_group(&mut self, memory: Option<Memory>) {
        let term = self.role().map_or(0, |role| role.term);
        self.step_down(term);
        (self.group, self.lost_since) = (None, None);
        self.id = draw(&mut self.random);
        if let Some(open) = &mut self.open {
            open.leaves_group(memory);
        }
        self.greet();
        self.write_note(None);
    }
}
