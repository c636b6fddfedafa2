//! The machine: the library's node, its inputs, and a function that drains it.

mod clock;
mod confirm;
mod drain;
mod election;
mod snapshot;
mod ticks;

use std::time::Duration;

use bytes::BufMut as _;
use raft::prelude::{
    ConfChangeSingle, ConfChangeType, ConfChangeV2, ConfState, Message, MessageType, RawNode,
};
use raft::{ProgressState, StateRole};
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now, earliest};

use crate::ConsensusRule;
use crate::configuration::{Configuration, Kind, VoterChange};
use crate::guard::{self, Verdict};
use crate::io::{Input, Output, Role};
use crate::log::Log;
use crate::voter::VoterId;
use crate::wire::message::{self, Envelope};
use crate::wire::{COMMAND_BOUND, ConsensusWireError, FRAME_BOUND, opcode};
use clock::GroupClock;
use confirm::Questions;
use election::{Election, TICKS_BOUND};
use snapshot::{Assemblies, Transfers};

/// Ticks without a leader after which the member with index 0 campaigns.
const ELECTION_TICKS: usize = 16;

/// Ticks between heartbeats.
///
/// A follower that misses one heartbeat does not campaign yet.
const HEARTBEAT_TICKS: usize = 7;

/// Ticks between a leader's checks of its majority.
///
/// A leader steps down if no majority has answered since the previous check. A check coincides with
/// every second heartbeat, so that the leader need not wake up for it.
const MAJORITY_TICKS: usize = 2 * HEARTBEAT_TICKS;

/// Maximum number of bytes of entries in one message.
const MESSAGE_BOUND: u64 = 512 << 10;

/// Maximum number of unacknowledged messages to a peer.
const MESSAGES_IN_FLIGHT: usize = 64;

/// Maximum number of bytes of proposed commands that are not committed.
const UNCOMMITTED_BOUND: u64 = 16 << 20;

/// Maximum number of entries that a learner may lack when it becomes a voter.
const CAUGHT_UP: u64 = 64;

/// Settings of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Duration of a tick.
    ///
    /// A leader sends a heartbeat every 7 ticks. Without heartbeats, a member campaigns after `16 +
    /// index` ticks, and after more ticks if votes were split.
    pub tick: Duration,
    /// Number of entries applied since the last snapshot that triggers truncation.
    pub truncate_after: u64,
    /// Maximum number of snapshot bytes in one frame.
    ///
    /// At least 1, and at most half of [`crate::wire::FRAME_BOUND`].
    pub snapshot_part: usize,
    /// Rules that are in force: all of them, except in a simulation.
    pub rules: Rules<ConsensusRule>,
}

impl Default for Settings {
    /// Returns ticks of 50 ms, and snapshots every 4096 entries in 512 KiB parts.
    fn default() -> Self {
        Self {
            tick: Duration::from_millis(50),
            truncate_after: 4096,
            snapshot_part: FRAME_BOUND / 2,
            rules: Rules::default(),
        }
    }
}

/// One member of a group.
pub struct Consensus {
    node: RawNode<Log>,
    settings: Settings,
    id: VoterId,
    /// Configuration in force.
    configuration: Configuration,
    /// Newest configuration in the log.
    appended: Configuration,
    now: Now,
    /// Time up to which ticks have been counted.
    ticked: Mono,
    role: Role,
    election: Election,
    clock: GroupClock,
    questions: Questions,
    assemblies: Assemblies,
    transfers: Transfers,
    /// `true` if the state was requested and has not been supplied yet.
    wants_snapshot: bool,
    outbox: Outbox<Output>,
}

impl Consensus {
    /// Creates a voter of a new group.
    ///
    /// All voters of the group receive the same list and state. The first voter of the list
    /// campaigns immediately. Terms begin after `term`, which is at least 1, and is higher if the
    /// group follows other groups, all of whose members have ended.
    pub fn bootstrap(
        now: Now,
        settings: Settings,
        id: VoterId,
        voters: &[VoterId],
        state: &[u8],
        term: u64,
    ) -> Self {
        let mut configuration = Configuration::of_voters(voters);
        if !settings.rules.has(ConsensusRule::VotersWaitInTurn) {
            configuration
                .voter_indices
                .values_mut()
                .for_each(|voter_index| *voter_index = 0);
        }
        let conf_state = ConfState {
            voters: voters.iter().map(|voter| voter.number()).collect(),
            ..ConfState::default()
        };
        let at = Now {
            mono: Mono::ZERO,
            ..now
        };
        let state = snapshot::wrap(at, &configuration, state);
        let log = Log::of_group(conf_state, state, term.max(1));
        let voter_index = configuration.voter_indices.get(&id).copied().unwrap_or(0);
        let mut consensus = Self::new(now, settings, id, voter_index, log, configuration);
        consensus.clock.apply(at);
        if voters.first() == Some(&id) {
            consensus.election.begin(now.mono, Vec::new());
        }
        consensus
    }

    /// Creates a member that an existing group has invited.
    ///
    /// `voter_index` is the voter index from the invitation. The member waits for the leader of the
    /// group.
    pub fn join(now: Now, settings: Settings, id: VoterId, voter_index: u8) -> Self {
        let log = Log::default();
        Self::new(
            now,
            settings,
            id,
            voter_index,
            log,
            Configuration::default(),
        )
    }

    fn new(
        now: Now,
        settings: Settings,
        id: VoterId,
        voter_index: u8,
        log: Log,
        configuration: Configuration,
    ) -> Self {
        let config = raft::Config {
            id: id.number(),
            election_tick: MAJORITY_TICKS,
            heartbeat_tick: HEARTBEAT_TICKS,
            // The library draws a number from this range. `await_leader` replaces the number before
            // the library uses it.
            min_election_tick: ELECTION_TICKS,
            max_election_tick: TICKS_BOUND,
            applied: log.snapshot_index(),
            pre_vote: settings.rules.has(ConsensusRule::PreVote),
            check_quorum: settings.rules.has(ConsensusRule::CheckQuorum),
            max_size_per_msg: MESSAGE_BOUND,
            max_inflight_msgs: MESSAGES_IN_FLIGHT,
            max_uncommitted_size: UNCOMMITTED_BOUND,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&config, log, &logger).expect("constants that the library takes");
        let mut consensus = Self {
            role: Role {
                term: node.raft.term,
                leader: None,
                leads: false,
                heard: None,
            },
            node,
            settings,
            id,
            appended: configuration.clone(),
            configuration,
            now,
            ticked: now.mono,
            election: Election::new(voter_index),
            clock: GroupClock::default(),
            questions: Questions::default(),
            assemblies: Assemblies::default(),
            transfers: Transfers::default(),
            wants_snapshot: false,
            outbox: Outbox::default(),
        };
        consensus.await_leader();
        consensus
    }

    /// Returns the id of this member.
    pub fn id(&self) -> VoterId {
        self.id
    }

    /// Returns the role of this member, as far as it knows.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Returns the configuration in force, as far as this member knows.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Returns the newest configuration in the log, which need not be in force.
    pub fn appended(&self) -> &Configuration {
        &self.appended
    }

    /// Returns the index of the last applied log entry.
    pub fn applied(&self) -> u64 {
        self.node.raft.raft_log.applied()
    }

    /// Returns the index of the last entry that is known to be committed.
    pub fn committed(&self) -> u64 {
        self.node.raft.raft_log.committed
    }

    /// Returns the term of a log entry.
    ///
    /// `None` if the entry was truncated, or if it is after the end of the log.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        self.node.store().term_at(index)
    }

    /// Returns index and term of the last entry of the log.
    pub fn last(&self) -> (u64, u64) {
        let last = self.node.store().last();
        (last, self.term_at(last).unwrap_or(0))
    }

    /// Returns the number of entries that a member lacks, by its last report.
    ///
    /// `None` if this member does not lead, or if the process is not a member.
    pub fn lag(&self, member: VoterId) -> Option<u64> {
        if self.node.raft.state != StateRole::Leader {
            return None;
        }
        let progress = self.node.raft.prs().get(member.number())?;
        Some(self.node.store().last() - progress.matched)
    }

    /// `true` if this member leads, and the other has enough entries to vote.
    ///
    /// A member that has acknowledged nothing yet lacks everything, however short the log is.
    pub fn is_caught_up(&self, member: VoterId) -> bool {
        let promotes = !self.follows(ConsensusRule::LearnersHaveTheLog);
        let last = self.node.store().last();
        self.lag(member)
            .is_some_and(|lag| promotes || lag < last && lag <= CAUGHT_UP)
    }

    /// `true` if a change of members is not over, as far as this member knows.
    pub fn is_changing(&self) -> bool {
        self.configuration.is_joint() || self.node.raft.has_pending_conf()
    }

    fn follows(&self, rule: ConsensusRule) -> bool {
        self.settings.rules.has(rule)
    }

    fn propose(&mut self, token: u64, command: &[u8]) {
        let leads = self.node.raft.state == StateRole::Leader;
        let mut begun = false;
        if leads && command.len() <= COMMAND_BOUND {
            let at = self.clock.at(self.now, self.pace());
            let mut data = Vec::with_capacity(16 + command.len());
            clock::write(at, &mut data);
            data.put_slice(command);
            begun = self.node.propose(Vec::new(), data).is_ok();
        }
        if !begun && self.follows(ConsensusRule::DropsAreReported) {
            self.outbox.push(Output::Dropped(token));
        }
    }

    /// Returns the speed of the group's time, as a multiple of the clock's.
    fn pace(&self) -> u32 {
        1 + u32::from(!self.follows(ConsensusRule::TimeIsSteady))
    }

    fn received(&mut self, from: VoterId, code: u8, payload: &[u8]) {
        let result = match code {
            opcode::MESSAGE => message::read(payload).map(|envelope| self.step(from, envelope)),
            opcode::SNAPSHOT_PART => message::read_part(payload).map(|part| {
                let mixes = !self.follows(ConsensusRule::SnapshotsAreWhole);
                self.assemblies.add(from, part, mixes);
            }),
            other => Err(ConsensusWireError::Opcode(other)),
        };
        if let Err(error) = result {
            self.close(from, error.to_string());
        }
    }

    fn step(&mut self, from: VoterId, envelope: Envelope) {
        let Envelope {
            mut message,
            silence,
            state_length,
        } = envelope;
        if message.msg_type == MessageType::MsgSnapshot {
            let metadata = message.get_snapshot().get_metadata();
            let key = (metadata.index, metadata.term);
            // A snapshot without all of its parts counts as lost.
            let Some(state) = self.assemblies.take(from, key, state_length) else {
                return;
            };
            if snapshot::unwrap(&state).is_none() {
                self.close(from, "the state of its snapshot cannot be read".to_owned());
                return;
            }
            message.mut_snapshot().data = state;
        }
        let slack = u64::from(!self.follows(ConsensusRule::CommitsAreBounded));
        match guard::check(&self.node, from, &message, slack) {
            Verdict::Pass => {}
            Verdict::Ignore => return,
            Verdict::Refuse(reason) => {
                self.close(from, format!("{reason} ({:?})", message.msg_type));
                return;
            }
        }
        if !self.follows(ConsensusRule::EntriesHaveTerms) {
            let term = message.term;
            let entries = message.mut_entries().iter_mut();
            entries.for_each(|entry| entry.term = term);
        }
        if message.msg_type == MessageType::MsgRequestVoteResponse && !message.reject {
            let silence = silence.filter(|_| self.follows(ConsensusRule::SilenceIsReported));
            self.election.granted(self.now.mono, message.term, silence);
        }
        if message.msg_type == MessageType::MsgRequestPreVote {
            self.withdraw(from, &message);
        }
        let leads = matches!(
            message.msg_type,
            MessageType::MsgAppend | MessageType::MsgHeartbeat | MessageType::MsgSnapshot
        );
        // An answer from a process that is not a member is a harmless error.
        let _ = self.node.step(message);
        if leads && self.node.raft.leader_id == from.number() {
            self.election.heard(self.now.mono);
        }
    }

    fn close(&mut self, peer: VoterId, reason: String) {
        self.assemblies.forget(peer);
        self.outbox.push(Output::Close { peer, reason });
    }

    fn peer_changed(&mut self, peer: VoterId, is_up: bool) {
        self.assemblies.forget(peer);
        if self.node.raft.state == StateRole::Leader {
            self.node.report_unreachable(peer.number());
            self.snapshot_failed(peer);
            if is_up {
                // The answer to the ping shows which entries the peer lacks.
                self.node.ping();
            }
        } else if !is_up
            && self.node.raft.leader_id == peer.number()
            && self.follows(ConsensusRule::ClosedLeaderIsForgotten)
        {
            self.forget_leader(peer);
        }
    }

    /// Handles the close of the leader's connection.
    ///
    /// The leader no longer keeps this member from voting. The member soon campaigns, in the order
    /// of voter indexes after the leader's. If the leader is alive after all, its next heartbeat
    /// ends the campaign. The other members still receive from the leader and do not vote.
    fn forget_leader(&mut self, leader: VoterId) {
        let term = self.node.raft.term;
        self.node.raft.become_follower(term, raft::INVALID_ID);
        let configuration = self.configuration();
        let succession = configuration.succession(leader).into_iter();
        let before = succession
            .take_while(|member| *member != self.id)
            .filter(|member| configuration.is_voter(*member));
        let before = if self.follows(ConsensusRule::VotersWaitInTurn) {
            before.collect()
        } else {
            Vec::new()
        };
        self.election.begin(self.now.mono, before);
    }

    /// Ends this member's campaign in favor of a member that comes before it.
    ///
    /// The other member must ask for a vote that it would get. If both campaigned at the same time,
    /// the votes would be split.
    fn withdraw(&mut self, asks: VoterId, message: &Message) {
        let raft = &mut self.node.raft;
        let stands = matches!(raft.state, StateRole::PreCandidate | StateRole::Candidate);
        let gets_vote = message.term > raft.term
            && (raft.raft_log).is_up_to_date(message.index, message.log_term);
        if stands && gets_vote && self.election.stands_before(asks) {
            raft.become_follower(raft.term, raft::INVALID_ID);
        }
    }

    /// Sets how long this member waits for a leader.
    ///
    /// The library draws its own number at each change of term or role, and does not use that
    /// number before this call.
    fn await_leader(&mut self) {
        let raft = &mut self.node.raft;
        if raft.leader_id != raft::INVALID_ID {
            self.election.has_leader(raft.term);
        }
        raft.set_randomized_election_timeout(self.election.ticks(raft.term));
    }

    fn change(&mut self, change: &VoterChange) {
        let leads = self.node.raft.state == StateRole::Leader;
        let fault = if !leads {
            Some("this member does not lead")
        } else if self.is_changing() {
            Some("the last change is not over")
        } else if self.node.raft.lead_transferee.is_some() {
            Some("this member hands over")
        } else {
            self.fault(change)
        };
        let context = change.write();
        let begun = fault.is_none()
            && (self.node)
                .propose_conf_change(context, library_change(change))
                .is_ok();
        if !begun {
            let fault = fault.unwrap_or("too much is uncommitted");
            self.outbox.push(Output::Unchanged(fault));
        }
    }

    fn fault(&self, change: &VoterChange) -> Option<&'static str> {
        let leader = if self.follows(ConsensusRule::LeadersHandOver) {
            self.id
        } else {
            VoterId::new(u64::MAX)?
        };
        let new_voters = change.steps.iter().filter(|step| step.kind == Kind::Voter);
        let is_empty = |step: &crate::configuration::Step| !self.is_caught_up(step.member);
        if new_voters.into_iter().any(is_empty) {
            return Some("the voter-to-be does not have the log yet");
        }
        let fault = self.configuration.fault(leader, change);
        fault.filter(|fault| {
            self.follows(ConsensusRule::VotersWaitInTurn)
                || *fault != "two members have one voter index"
        })
    }

    fn transfer(&mut self, to: Option<VoterId>) {
        let own = self.id.number();
        let newest = || {
            let progress = self.node.raft.prs().iter();
            let voters = progress.filter(|(id, progress)| {
                let is_voter =
                    VoterId::new(**id).is_some_and(|id| self.configuration.voters.contains(&id));
                **id != own && is_voter && progress.recent_active
            });
            // Of equal voters, the lowest id wins.
            let newest = voters.max_by_key(|(id, progress)| (progress.matched, u64::MAX - **id));
            newest.map(|(id, _)| *id)
        };
        if self.node.raft.state == StateRole::Leader
            && let Some(to) = to.map(VoterId::number).or_else(newest)
        {
            self.node.transfer_leader(to);
        }
    }

    fn snapshot_given(&mut self, state: &[u8]) {
        if !std::mem::take(&mut self.wants_snapshot) {
            return;
        }
        let mut index = self.applied();
        if !self.follows(ConsensusRule::SnapshotsAreExact) && self.term_at(index + 1).is_some() {
            index += 1;
        }
        let configuration = if self.follows(ConsensusRule::SnapshotsHaveIndexes) {
            self.configuration.clone()
        } else {
            Configuration::default()
        };
        let state = snapshot::wrap(self.clock.applied(), &configuration, state);
        self.node.mut_store().truncate(index, state);
        if self.node.raft.state == StateRole::Leader {
            // These members may wait for a snapshot, because the last one was taken before they
            // were added.
            let progress = self.node.raft.prs().iter();
            let waiting = progress
                .filter(|(id, it)| **id != self.id.number() && it.state == ProgressState::Probe);
            let waiting: Vec<u64> = waiting.map(|(id, _)| *id).collect();
            waiting
                .into_iter()
                .for_each(|id| self.node.raft.send_append(id));
        }
    }

    fn snapshot_failed(&mut self, peer: VoterId) {
        if self.follows(ConsensusRule::SnapshotsAreResent) {
            let failed = raft::SnapshotStatus::Failure;
            self.node.report_snapshot(peer.number(), failed);
        }
    }

    fn campaign(&mut self) {
        let state = self.node.raft.state;
        let has_leader = self.node.raft.leader_id != raft::INVALID_ID;
        let may = self.node.raft.promotable() || !self.follows(ConsensusRule::OnlyVotersCampaign);
        if has_leader || !may {
            self.election.end();
            return;
        }
        self.election.again(self.now.mono);
        // Requested votes are still on their way, unless they are split.
        let (_, refused, _) = self.node.raft.prs().tally_votes();
        if state != StateRole::Candidate || refused > 0 {
            let _ = self.node.campaign();
        }
    }

    fn send(&mut self, messages: Vec<Message>) {
        for message in messages {
            // A leader that grants a vote against itself has led until now.
            let silence = if self.role.leads {
                Some(Duration::ZERO)
            } else {
                self.election.silence(self.now.mono)
            };
            let is_vote = matches!(
                message.msg_type,
                MessageType::MsgRequestPreVoteResponse | MessageType::MsgRequestVoteResponse
            );
            if is_vote && !message.reject {
                self.election.again(self.now.mono);
            }
            let Some(to) = VoterId::new(message.to) else {
                continue;
            };
            let part = self.settings.snapshot_part.clamp(1, FRAME_BOUND / 2);
            for frame in message::write(&message, silence, part)
                .into_iter()
                .flatten()
            {
                self.outbox.push(Output::Send { to, frame });
            }
        }
    }
}

/// Converts a change into the library's form.
fn library_change(change: &VoterChange) -> ConfChangeV2 {
    let steps = change.steps.iter().map(|step| ConfChangeSingle {
        node_id: step.member.number(),
        change_type: match step.kind {
            Kind::Voter => ConfChangeType::AddNode,
            Kind::Learner => ConfChangeType::AddLearnerNode,
            Kind::Removed => ConfChangeType::RemoveNode,
        },
        ..ConfChangeSingle::default()
    });
    ConfChangeV2 {
        changes: steps.collect::<Vec<_>>().into(),
        ..ConfChangeV2::default()
    }
}

impl Machine for Consensus {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        self.now = now;
        if !matches!(input, Input::Tick) {
            self.count_ticks();
        }
        match input {
            Input::Propose { token, command } => self.propose(token, command),
            Input::Received {
                from,
                opcode,
                payload,
            } => self.received(from, opcode, payload),
            Input::PeerUp(peer) => self.peer_changed(peer, true),
            Input::PeerDown(peer) => self.peer_changed(peer, false),
            Input::Confirm(token) => self.confirm(token),
            Input::Change(change) => self.change(change),
            Input::Transfer(to) => self.transfer(to),
            Input::Snapshot(state) => self.snapshot_given(state),
            Input::Tick => self.tick(),
        }
        self.drain();
        self.await_leader();
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        earliest([self.election.due(), self.tick_due()])
    }
}

impl std::fmt::Debug for Consensus {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Consensus")
            .field("id", &self.id)
            .field("role", &self.role)
            .field("state", &self.node.raft.state)
            .field("last", &self.last())
            .field("committed", &self.committed())
            .field("configuration", &self.configuration)
            .finish_non_exhaustive()
    }
}
