//! Drains the library with one function: append, send, apply, advance.

use raft::StateRole;
use raft::prelude::{ConfState, Entry, EntryType, Snapshot};

use super::{Consensus, clock, library_change, snapshot};
use crate::ConsensusRule;
use crate::configuration::{Configuration, VoterChange};
use crate::io::{Output, Role};
use crate::voter::VoterId;

impl Consensus {
    pub(super) fn drain(&mut self) {
        self.ask();
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            if !ready.snapshot().is_empty() {
                self.restore(ready.snapshot().clone());
            }
            // The driver records a configuration before any peer learns that the log contains it.
            self.note(ready.entries());
            let answers = ready.take_read_states();
            let mut committed = ready.take_committed_entries();
            self.append(ready.entries());
            if let Some(hard_state) = ready.hs() {
                self.node.mut_store().hard_state = hard_state.clone();
            }
            let messages = ready.take_messages();
            let persisted = ready.take_persisted_messages();
            let early: Vec<Entry> = if self.follows(ConsensusRule::OnlyCommittedIsApplied) {
                Vec::new()
            } else {
                std::mem::take(&mut committed)
                    .into_iter()
                    .filter(|entry| entry.entry_type != EntryType::EntryNormal)
                    .chain(ready.entries().iter().cloned())
                    .collect()
            };
            self.send(messages);
            self.send(persisted);
            let mut light = self.node.advance_append(ready);
            if let Some(commit) = light.commit_index() {
                self.node.mut_store().hard_state.commit = commit;
            }
            let messages = light.take_messages();
            self.send(messages);
            committed.extend(light.take_committed_entries());
            if !self.follows(ConsensusRule::OnlyCommittedIsApplied) {
                committed.retain(|entry| entry.entry_type != EntryType::EntryNormal);
                committed.extend(early);
            }
            for entry in committed {
                self.apply(entry);
            }
            self.node.advance_apply();
            self.announce();
            self.answered(answers);
            self.step_down();
            self.ask();
        }
        let applied = self.applied() - self.node.store().snapshot_index().min(self.applied());
        let is_needed = self.node.store().needs_snapshot();
        let is_due = applied >= self.settings.truncate_after;
        if (is_needed || is_due) && !self.wants_snapshot {
            self.wants_snapshot = true;
            self.outbox.push(Output::TakeSnapshot);
        }
    }

    fn append(&mut self, entries: &[Entry]) {
        let last = self.node.store().last();
        let kept = if self.follows(ConsensusRule::ConflictsAreReplaced) {
            0
        } else {
            entries.iter().filter(|entry| entry.index <= last).count()
        };
        self.node.mut_store().append(&entries[kept..]);
    }

    /// Reports each configuration among new entries of the log.
    fn note(&mut self, entries: &[Entry]) {
        for entry in entries {
            if entry.get_entry_type() == EntryType::EntryNormal {
                continue;
            }
            if let Some(change) = VoterChange::read(&entry.context) {
                // Changes happen one at a time, so each starts from the configuration in force.
                self.appended = self.configuration.after(&change);
                self.outbox.push(Output::Note(self.appended.clone()));
            }
        }
    }

    fn apply(&mut self, entry: Entry) {
        if entry.get_entry_type() != EntryType::EntryNormal {
            self.apply_change(&entry);
            return;
        }
        // The first entry of a leader is empty.
        let mut command = &entry.data[..];
        if let Some(at) = clock::read(&mut command) {
            self.clock.apply(at);
            self.outbox.push(Output::Apply {
                index: entry.index,
                at,
                command: entry.data.slice_ref(command),
            });
        }
    }

    fn apply_change(&mut self, entry: &Entry) {
        let Some(change) = VoterChange::read(&entry.context) else {
            return;
        };
        let follows = self.node.raft.state != StateRole::Leader;
        if change.is_empty() && follows && !self.follows(ConsensusRule::FollowersLeaveJoint) {
            return;
        }
        // A change that is impossible here is impossible at every member, so it changes nothing.
        if let Ok(conf_state) = self.node.apply_conf_change(&library_change(&change)) {
            let voter_indices = self.configuration.after(&change).voter_indices;
            self.node.mut_store().conf_state = conf_state.clone();
            self.in_force(of_library(&conf_state, voter_indices));
        }
    }

    fn in_force(&mut self, configuration: Configuration) {
        self.configuration = configuration;
        if let Some(voter_index) = self.configuration.voter_indices.get(&self.id) {
            self.election.set_voter_index(*voter_index);
        }
        let is_newest = !self.node.raft.has_pending_conf();
        if is_newest {
            self.appended.clone_from(&self.configuration);
        }
        let configuration = self.configuration.clone();
        self.outbox.push(Output::Configuration(configuration));
    }

    fn restore(&mut self, snapshot: Snapshot) {
        let index = snapshot.get_metadata().index;
        let conf_state = snapshot.get_metadata().get_conf_state().clone();
        let Some((at, voter_indices, state)) = snapshot::unwrap(&snapshot.data) else {
            return;
        };
        self.node.mut_store().restore(snapshot);
        self.clock.apply(at);
        self.wants_snapshot = false;
        let configuration = of_library(&conf_state, voter_indices);
        self.appended.clone_from(&configuration);
        self.outbox.push(Output::Note(configuration.clone()));
        self.outbox.push(Output::Restore { index, at, state });
        self.in_force(configuration);
    }

    fn announce(&mut self) {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader;
        let term = raft.term;
        let leader = VoterId::new(raft.leader_id);
        let was = self.role;
        if (was.term, was.leader, was.leads) == (term, leader, leads) {
            return;
        }
        let begins = leads && !(was.leads && was.term == term);
        if begins {
            let last = if self.follows(ConsensusRule::TimeGoesOn) {
                self.time_of_log()
            } else {
                self.now
            };
            self.clock.lead(self.now, last);
        }
        let heard = match leads {
            true if begins => self.election.won(term),
            true => was.heard,
            false => None,
        };
        if was.leads && !leads {
            self.election.heard(self.now.mono);
        }
        if leader.is_some() {
            self.election.end();
        }
        self.role = Role {
            term,
            leader,
            leads,
            heard,
        };
        self.outbox.push(Output::Role(self.role));
    }

    /// Returns the time of the newest command in the log.
    fn time_of_log(&self) -> rdzv_core::time::Now {
        let mut entries = self.node.store().newest();
        let newest = entries.find_map(|entry| {
            let is_command = entry.get_entry_type() == EntryType::EntryNormal;
            is_command.then(|| clock::read(&mut &entry.data[..]))?
        });
        newest.unwrap_or(self.clock.applied())
    }

    /// Stops a leader that has applied its own removal.
    ///
    /// The library would continue to lead, and would end the process at the next commit. This
    /// happens if an earlier leader proposed the removal and then ended.
    fn step_down(&mut self) {
        let leads = self.node.raft.state == StateRole::Leader;
        let is_voter = self.configuration.is_voter(self.id);
        if leads && !is_voter && self.follows(ConsensusRule::LeadersHandOver) {
            let term = self.node.raft.term;
            self.node.raft.become_follower(term, raft::INVALID_ID);
            self.announce();
        }
    }
}

/// Converts the library's configuration, and adds the voter indexes.
fn of_library(
    conf_state: &ConfState,
    voter_indices: std::collections::BTreeMap<VoterId, u8>,
) -> Configuration {
    let set = |members: &[u64]| members.iter().copied().filter_map(VoterId::new).collect();
    let mut configuration = Configuration {
        voters: set(&conf_state.voters),
        outgoing: set(&conf_state.voters_outgoing),
        learners: set(&conf_state.learners),
        voter_indices,
    };
    let members = configuration.members();
    configuration
        .voter_indices
        .retain(|member, _| members.contains(member));
    configuration
}
