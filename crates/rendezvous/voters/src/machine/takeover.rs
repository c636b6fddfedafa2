//! Takeover of an open group that has lost its majority for good.
//!
//! One of the processes that remember the group continues from its record.
//!
//! A process remembers a group if it was a member, or if the previous process at its address was.
//! The memory holds the last term, the runs, and the voters of the newest configuration in the log.
//! Each process sends the remembered voters to the others. The takeover begins once every voter
//! that any of them remembers is matched by a connected process outside a group. No voter is then
//! in the old group, because a listening socket has one owner. The process with the newest memory
//! founds its own group, in the same cluster and with later terms, and the others join it.
//!
//! If a member lost its memory together with its machine, the others may not know every decision.
//! The situation is then the same as after the end of a coordinator without a record. All
//! participants of a round must report it, and the next round has a far higher number. This applies
//! to all coordinators of the new group until it records a round: the old records are outdated.
//!
//! Unless a memory is lost, no process can miss a newer configuration this way. A configuration
//! comes into force when a majority of the previous one has it in the log, so one of the matched
//! processes remembers it. Two processes cannot both continue either. A process may remember an
//! older configuration and be no member of the newer one. Then the members of the newer one have
//! applied more of the log, and the process knows of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use rdzv_consensus::wire::ControlFrame;
use rdzv_consensus::{Configuration, VoterId};
use rdzv_core::time::Now;

use super::{Group, Voter, cluster_of, draw};
use crate::{Fact, Output};
use rdzv_rendezvous_proto::Rule;
use rdzv_rendezvous_proto::coordinator::{Note, RunNote};

/// More terms than can exist after the last term that a member recorded.
const UNKNOWN_TERMS: u64 = 1000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) cluster: u64,
    pub(super) term: u64,
    pub(super) runs: BTreeMap<String, RunNote>,
    /// Addresses (`host:port`) of the other voters; empty for an unknown address.
    pub(super) others: Vec<String>,
    /// Position in the log that this memory reflects.
    pub(super) applied: (u64, u64),
    /// `true` if the process was a voter.
    ///
    /// A process that only learned can report the voters to others, but cannot continue the group.
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

    /// Converts a record into a memory; `None` if the process was no member.
    pub(super) fn of_member(note: Note) -> Option<Self> {
        let memory = Self::of_note(note);
        (memory.cluster != 0).then_some(memory)
    }

    /// Marks the records of runs that are not over as outdated.
    ///
    /// Rounds that this process does not know may have been announced in the group's run. Every
    /// coordinator of the next group finds the mark in the records until it records another round.
    pub(super) fn outdate(&mut self, run: &str) {
        self.runs.entry(run.to_owned()).or_default();
        let open_runs = self.runs.values_mut().filter(|note| !note.closed);
        open_runs.for_each(|note| note.outdated = true);
    }

    /// Returns [`rounds`] of this memory.
    pub(super) fn rounds(&self) -> u32 {
        rounds(&self.runs)
    }
}

/// Highest announced round plus 1; 0 if no round was announced.
pub(super) fn rounds(runs: &BTreeMap<String, RunNote>) -> u32 {
    let announced = runs
        .values()
        .filter(|note| !note.members.is_empty() || note.round > 0);
    let rounds = announced.map(|note| u32::try_from(note.round).unwrap_or(u32::MAX - 1));
    rounds.max().map_or(0, |round| round + 1)
}

/// Position up to which the log of a group is applied.
///
/// The first number orders the logs of the cluster; the second one is an index.
pub(super) fn applied(group: &Group) -> (u64, u64) {
    ((group.id >> 64) as u64, group.consensus.applied())
}

impl Voter {
    /// Returns the memory of the current group, or else of the previous group.
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

    /// `true` if this process is a voter, as far as it knows.
    pub(super) fn votes(&self, group: &Group) -> bool {
        let votes = |configuration: &Configuration| configuration.is_voter(self.id);
        votes(group.consensus.appended()) || votes(group.consensus.configuration())
    }

    /// Returns the known addresses of possible members, in place of a memory.
    pub(super) fn known_endpoints(&self) -> Memory {
        let endpoints = self.settings.endpoints.iter().enumerate();
        let others =
            endpoints.filter(|(at, endpoint)| *at != self.settings.own && !endpoint.is_empty());
        Memory {
            others: others.map(|(_, endpoint)| endpoint.clone()).collect(),
            ..Memory::default()
        }
    }

    /// Returns the addresses of the other voters; empty for unknown addresses.
    fn others(&self, group: &Group) -> Vec<String> {
        let voters = |configuration: &Configuration| -> BTreeSet<VoterId> {
            let voters = configuration.voters.union(&configuration.outgoing);
            voters.copied().collect()
        };
        let mut all = voters(group.consensus.appended());
        all.extend(voters(group.consensus.configuration()));
        if all.is_empty() {
            // This process has not learned the voters yet.
            return vec![group.inviter.clone()];
        }
        all.remove(&self.id);
        let address = |member: VoterId| self.peers.address(member).unwrap_or_default();
        let addresses = all.into_iter().map(address);
        // Another voter at this process's address has ended.
        let own = self.endpoint(self.settings.own);
        let others = addresses.filter(|address| *address != own);
        others.map(str::to_owned).collect()
    }

    /// Returns the part of the memory that this process sends with its greeting.
    pub(super) fn remembered(&self) -> Option<ControlFrame> {
        let memory = self.open.as_ref()?.memory.as_ref()?;
        let others = memory.others.iter().map(|address| (None, address.clone()));
        (self.group.is_none()).then(|| ControlFrame::Members(others.collect()))
    }

    /// Continues the group alone if this process has the newest memory.
    ///
    /// Every voter that any process remembers must be matched by a connected process.
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
            let mut endpoints = self.settings.endpoints.iter();
            let index = endpoints.position(|endpoint| !endpoint.is_empty() && *endpoint == address);
            let peer = index.and_then(|index| self.peers.present(index));
            let Some(peer) = peer.filter(|peer| peer.group == 0) else {
                if !self.settings.rules.has(Rule::MissingBlock) {
                    continue;
                }
                return;
            };
            // The longest applied log wins, then a voter over a learner, then the lower id.
            let theirs = (peer.applied, peer.votes, Reverse(peer.voter));
            let is_first = !self.settings.rules.has(Rule::NewestTakesOver)
                || theirs <= (memory.applied, true, Reverse(self.id));
            if !is_first {
                return;
            }
            if let Some(index) = index {
                needed.extend(self.peers.remembers(index).iter().cloned());
            }
            if peer.applied == (0, 0) {
                is_partial = true;
            } else if index.is_none_or(|index| !self.peers.has_reported(index)) {
                return;
            }
        }
        let counts = self.settings.rules.has(Rule::LostMayHaveKnown);
        if let Some(open) = self.open.as_mut().filter(|_| is_partial && counts) {
            open.begin_partial();
            memory.outdate(open.run());
        }
        // Others may have voted in terms that this process does not know.
        let term = memory.term + UNKNOWN_TERMS;
        let memory = Memory { term, ..memory };
        self.outbox.push(Output::Log(Fact::TookOver));
        self.seen.takeovers += 1;
        self.go_on_alone(now, memory);
    }

    /// Leaves a group that can never decide again, and keeps its memory.
    ///
    /// A group with a leader is not lost. Without a leader, a learner leaves. A voter leaves if
    /// each voter is connected or has certainly ended, and the connected ones are no majority.
    pub(super) fn leave_if_lost(&mut self, now: Now) {
        let Some(group) = &self.group else { return };
        let alive = self.all_connected();
        let configuration = group.consensus.configuration();
        let mut voters = configuration.voters.union(&configuration.outgoing);
        let own = self.endpoint(self.settings.own);
        let was_here = |voter: VoterId| self.peers.address(voter) == Some(&own);
        let has_ended = |voter: VoterId| self.peers.is_replaced(voter) || was_here(voter);
        // A group needs no learner to decide.
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

    /// Leaves the group and draws a new id.
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
