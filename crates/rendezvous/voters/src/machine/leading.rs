//! Handles the outputs of the group and runs the coordinator at its leader.

use std::collections::VecDeque;
use std::time::Duration;

use rdzv_consensus::wire::ControlFrame;
use rdzv_consensus::{self as consensus, Configuration, Role};
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now};

use super::open::OpenGroup;
use super::{Group, QUESTION, Voter, cluster_of};
use crate::command;
use crate::{Fact, Output};
use rdzv_rendezvous_proto::Rule;
use rdzv_rendezvous_proto::coordinator::note::{read_runs, write_runs};
use rdzv_rendezvous_proto::coordinator::wire::Authority;
use rdzv_rendezvous_proto::coordinator::{self, Coordinator, Note, Origin};
use rdzv_rendezvous_proto::slot::Bytes;

/// Time limit for the handover of a voter that exits cleanly.
///
/// Within this time, the other voters change the group.
const HAND_OVER_WITHIN: Duration = Duration::from_millis(500);

/// Input for the group that follows from one of its outputs.
enum Then {
    Confirm(u64),
    Snapshot,
}

impl Voter {
    /// Passes an input to the group and acts on the outputs.
    pub(super) fn consent(&mut self, now: Now, input: consensus::Input<'_>) {
        let Some(mut group) = self.group.take() else {
            return;
        };
        group.consensus.handle(now, input);
        let mut next = VecDeque::new();
        loop {
            while let Some(output) = group.consensus.poll_output() {
                self.of_group(now, &mut group, output, &mut next);
            }
            match next.pop_front() {
                Some(Then::Confirm(term)) => {
                    group.consensus.handle(now, consensus::Input::Confirm(term));
                }
                Some(Then::Snapshot) => {
                    let mut state = Vec::new();
                    write_runs(&group.runs, &mut state);
                    group
                        .consensus
                        .handle(now, consensus::Input::Snapshot(&state));
                }
                None => break,
            }
        }
        self.group = Some(group);
    }

    fn of_group(
        &mut self,
        now: Now,
        group: &mut Group,
        output: consensus::Output,
        next: &mut VecDeque<Then>,
    ) {
        match output {
            consensus::Output::Send { to, frame } => {
                if let Some(index) = self.peers.index(to) {
                    self.outbox.push(Output::ToPeer { index, frame });
                }
            }
            consensus::Output::Apply { command, .. } => {
                let Some(command) = command::read(&command) else {
                    return;
                };
                match command.note {
                    Some(note) => drop(group.runs.insert(command.run, note)),
                    None => drop(group.runs.remove(&command.run)),
                }
                self.write_note(Some(group));
                if command.proposer == self.id.number() {
                    self.gate.committed(command.token);
                }
            }
            consensus::Output::Restore { state, .. } => {
                group.runs = read_runs(Bytes(&state)).unwrap_or_default();
                self.write_note(Some(group));
            }
            consensus::Output::TakeSnapshot => next.push_back(Then::Snapshot),
            consensus::Output::Configuration(configuration) => self.in_force(group, &configuration),
            consensus::Output::Role(role) => {
                if !role.leads {
                    self.step_down(role.term);
                } else if self.coordinator.is_none() {
                    next.push_back(Then::Confirm(role.term));
                }
                self.note_election(cluster_of(group.id), &role);
                self.write_note(Some(group));
                self.announce_leader(group, &role);
            }
            consensus::Output::Confirmed(token) if token & QUESTION != 0 => {
                self.answers.push((token & !QUESTION, true));
            }
            consensus::Output::Unconfirmed(token) if token & QUESTION != 0 => {
                self.answers.push((token & !QUESTION, false));
            }
            consensus::Output::Confirmed(term) => {
                let role = group.consensus.role();
                if role.leads && role.term == term && self.coordinator.is_none() {
                    self.begin(now, group, term);
                }
            }
            consensus::Output::Dropped(token) => self.gate.refused(token),
            consensus::Output::Close { peer, reason } => {
                let index = self.peers.index(peer);
                let peer = index.and_then(|index| self.peers.present(index));
                if let Some(connection) = peer.and_then(|peer| peer.connection) {
                    self.close(connection, reason);
                }
            }
            consensus::Output::Note(_) => self.members_changed(group),
            // A voter without confirmation does not lead. The next review retries a change.
            consensus::Output::Unconfirmed(_) | consensus::Output::Unchanged(_) => {}
        }
    }

    fn in_force(&mut self, group: &mut Group, configuration: &Configuration) {
        if configuration.is_joint() {
            // The previous voters still count, including the one that has ended.
            return self.members_changed(group);
        }
        if self.open.is_some() {
            self.open_in_force(group, configuration);
        } else {
            self.tell_replaced(group, configuration);
        }
        group.voters.clone_from(&configuration.voters);
        if group.consensus.role().leads {
            let leaving = self.peers.all_leaving();
            let left = leaving.filter(|(_, voter)| !configuration.has(*voter));
            for (index, _) in left.collect::<Vec<_>>() {
                self.send(index, &ControlFrame::Left);
            }
        }
    }

    /// Logs voters that replaced others, and a decrease in their number.
    fn tell_replaced(&mut self, group: &mut Group, configuration: &Configuration) {
        for voter in configuration.voters.difference(&group.voters) {
            // A voter that votes a second time replaces no other voter.
            if group.have_voted.insert(*voter)
                && let Some(index) = self.peers.index(*voter)
            {
                let endpoint = self.endpoint(index);
                self.log(group, Fact::Replaced { endpoint });
            }
        }
        if configuration.voters.len() < group.voters.len() {
            let voters = self.addresses(&configuration.voters);
            self.log(group, Fact::Fewer { voters });
        }
    }

    /// Logs another coordinator than the last one, or the loss of the coordinator.
    fn announce_leader(&mut self, group: &mut Group, role: &Role) {
        let index = match role.leader {
            // This process logs its own leadership when its coordinator starts.
            Some(leader) if leader == self.id => return,
            Some(leader) => self.peers.index(leader),
            None => None,
        };
        let was = std::mem::replace(&mut group.leader, index);
        match index {
            Some(_) if index == group.announced => {}
            Some(at) => {
                let before = self.announced_before(group, at);
                self.log(
                    group,
                    Fact::Follows {
                        coordinator: self.endpoint(at),
                        before,
                        term: role.term,
                    },
                );
            }
            None => {
                // A leader that steps down dismisses its own agents, so the log needs no line.
                if let Some(was) = was.filter(|was| *was != self.settings.own) {
                    let coordinator = self.endpoint(was);
                    self.log(group, Fact::Leaderless { coordinator });
                }
            }
        }
    }

    /// Records the new coordinator as logged and returns the one logged before.
    fn announced_before(&self, group: &mut Group, index: usize) -> Option<String> {
        let before = group.announced.replace(index);
        before.map(|before| self.endpoint(before))
    }

    pub(super) fn endpoint(&self, index: usize) -> String {
        let endpoint = self.settings.endpoints.get(index).cloned();
        endpoint.unwrap_or_default()
    }

    /// Logs an event of the group.
    ///
    /// Logs nothing if all its runs are over, or if this voter has retired.
    pub(super) fn log(&mut self, group: &Group, fact: Fact) {
        if !group.is_over() && !self.has_retired {
            self.outbox.push(Output::Log(fact));
        }
    }

    /// Starts the coordinator: this voter leads and has all committed entries.
    fn begin(&mut self, now: Now, group: &mut Group, term: u64) {
        let authority = Authority {
            cluster: cluster_of(group.id),
            epoch: u32::try_from(term).unwrap_or(u32::MAX),
            timeout: self.settings.timeout,
            takes_voters: self.open.is_some(),
            in_process: false,
        };
        self.open_leads(now);
        self.write_note(Some(group));
        let alone = self.open.as_mut().and_then(OpenGroup::origin);
        // If the record of a run is outdated, its agents report the last round. Every coordinator
        // needs these reports until another round is recorded.
        let mut runs = group.runs.clone();
        runs.retain(|_, note| !note.outdated);
        let is_partial = alone.as_ref().is_some_and(|(_, is_partial)| *is_partial)
            || runs.len() < group.runs.len();
        let note = Note {
            authority,
            is_partial,
            votes: true,
            runs,
            ..Note::default()
        };
        // Unless this process founded its group alone, the replicated record is complete about
        // earlier coordinators of the group, so nothing must be taken over.
        let heard = group.consensus.role().heard;
        let origin = match alone {
            Some((origin, _)) => origin,
            None => Origin {
                agent: self.settings.agent,
                forgotten: self.epoch,
                electors_heard: Some(heard.unwrap_or(Mono::ZERO)),
                node_timeout: Some(self.settings.node_timeout),
                rules: self.settings.rules,
                ..Origin::default()
            },
        };
        self.coordinator = Some(Coordinator::restartable(now, note, origin));
        self.decided = now.mono;
        group.leader = Some(self.settings.own);
        if group.announced != group.leader {
            let before = self.announced_before(group, self.settings.own);
            self.log(group, Fact::Coordinates { before, term });
        }
    }

    /// Ends the coordinator here, if there is one, and discards its unsent outputs.
    pub(super) fn step_down(&mut self, term: u64) {
        if self.coordinator.take().is_some() {
            self.gate.clear();
            self.questions.clear();
            self.answers.clear();
            self.open_leads_no_more();
            for agent in std::mem::take(&mut self.agents) {
                self.dismiss(
                    agent,
                    format!("this is no longer the coordinator (term {term})"),
                );
            }
            self.outbox.push(Output::SteppedDown);
        }
    }

    /// Starts the handover of a process that ends by its own decision.
    ///
    /// The process notifies the others and stays until they no longer count on it, for at most
    /// [`HAND_OVER_WITHIN`]. Two of three voters can leave this way, and the last one continues.
    pub(super) fn end(&mut self, now: Now) {
        let group = self.group.as_ref().filter(|group| !group.is_over());
        let is_deserted = self.peers.all_present().next().is_none();
        if group.is_none() {
            return self.retire();
        }
        if is_deserted && self.is_alone() {
            // Agents must not wait for a coordinator that has no successor.
            self.coordinate(now, coordinator::Input::Ending);
            return self.retire();
        }
        if is_deserted {
            // Without a connected member, this voter cannot hand over.
            return self.give_up_hand_over();
        }
        self.ending = Some(now.mono + HAND_OVER_WITHIN);
        self.send_all(&ControlFrame::Leave);
        self.change_members(now);
    }

    /// Stops participating in the group.
    pub(super) fn retire(&mut self) {
        if std::mem::replace(&mut self.has_retired, true) {
            return;
        }
        self.ending = None;
        // The only member continues without others. It keeps its record, because it may still be
        // killed and followed by another process.
        if !self.is_alone() || !self.settings.rules.has(Rule::LastVoterRecords) {
            self.gate.open();
        }
        self.outbox.push(Output::Retire);
        let connections = self
            .peers
            .all_present()
            .filter_map(|(_, peer)| peer.connection);
        for connection in connections.collect::<Vec<_>>() {
            self.dismiss(connection, "this voter is shutting down");
        }
    }
}
