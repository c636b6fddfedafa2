//! Machine of a voter: routes inputs, tracks the leader, and acts on changes.

mod agents;
mod leading;
mod membership;
mod open;
mod takeover;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rdzv_consensus::wire::{ControlFrame, OfRun, opcode};
use rdzv_consensus::{self as consensus, Consensus, Role, VoterId};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now, earliest};

use super::command;
use super::peers::{Peer, Peers};
use super::{Output, Settings};
use open::OpenGroup;
use rdzv_rendezvous_proto::coordinator::gate::{Gate, GateStep};
use rdzv_rendezvous_proto::coordinator::{self, Coordinator, Input, RunNote};
use view::Seen;

/// Interval between reviews of the group, as long as a review is needed.
const REVIEW: Duration = Duration::from_millis(50);

/// Time for which a group must look lost before its members leave it.
///
/// With the default `node_timeout`, a majority that this member does not know would elect a leader
/// within this time.
const LOST_AFTER: Duration = Duration::from_millis(1500);

/// Bit that marks the token of a confirmation as a question of the coordinator.
///
/// Without the bit, such a token is a term.
const QUESTION: u64 = 1 << 63;

/// One voter of a group.
#[derive(Debug)]
pub struct Voter {
    settings: Settings,
    /// State of a group that agents may join; `None` with a fixed list.
    open: Option<OpenGroup>,
    random: fastrand::Rng,
    /// Id of this process in its group.
    id: VoterId,
    /// Number of groups that were lost before the current or the next group.
    epoch: u32,
    peers: Peers,
    /// The group of this process; `None` while it is in no group.
    group: Option<Group>,
    /// The coordinator, if this voter leads.
    coordinator: Option<Coordinator>,
    gate: Gate,
    /// Connections of agents that have sent a request to the coordinator.
    agents: BTreeSet<ConnId>,
    /// Connections that wait for an answer to "who coordinates?".
    asking: BTreeSet<ConnId>,
    /// Questions of the coordinator to the group, and the group's answers.
    questions: Vec<u64>,
    answers: Vec<(u64, bool)>,
    /// Time of the coordinator's start, last proposal or last handover attempt.
    decided: Mono,
    /// Time until which an ending process waits for its removal from the group.
    ending: Option<Mono>,
    /// Time since which the group has looked as if it could never decide again.
    lost_since: Option<Mono>,
    /// Time of the next review of the group, if one is needed.
    review: Option<Mono>,
    has_retired: bool,
    /// State that only status requests need.
    seen: Seen,
    /// Endpoints of unsuitable processes that were logged already.
    unsuitable: BTreeSet<String>,
    outbox: Outbox<Output>,
}

/// Id of a group: its cluster (lower half) and a sequence number (upper half).
///
/// The sequence number is at least the last known term of the group that this group succeeds
/// without its log, or 1 if there is none. It is 0 for a group with a list.
type GroupId = u128;

fn cluster_of(group: GroupId) -> u64 {
    (group & u128::from(u64::MAX)) as u64
}

#[derive(Debug)]
struct Group {
    id: GroupId,
    consensus: Consensus,
    /// First voters of the group by endpoint index.
    ///
    /// Empty if this process is none of them, or if agents may join the group.
    founders: Vec<VoterId>,
    /// Address of the member that invited this process; empty for a first voter.
    inviter: String,
    /// Committed records of the runs.
    runs: BTreeMap<String, RunNote>,
    /// Endpoint index of the coordinator that was logged last.
    ///
    /// `leader` is the endpoint index of the current leader.
    announced: Option<usize>,
    leader: Option<usize>,
    voters: BTreeSet<VoterId>,
    /// Voters that this process has seen in the group; used only with a list.
    have_voted: BTreeSet<VoterId>,
}

impl Group {
    /// `true` if the group has runs and all of them are over.
    fn is_over(&self) -> bool {
        !self.runs.is_empty() && self.runs.values().all(|note| note.closed)
    }
}

impl Voter {
    /// Creates the voter of this process, which is in no group yet.
    pub fn new(mut settings: Settings) -> Self {
        let mut random = fastrand::Rng::with_seed(settings.seed);
        let mut voter = Self {
            id: draw(&mut random),
            epoch: 0,
            open: settings.open.take().map(OpenGroup::new),
            settings,
            random,
            peers: Peers::default(),
            group: None,
            coordinator: None,
            gate: Gate::default(),
            agents: BTreeSet::new(),
            asking: BTreeSet::new(),
            questions: Vec::new(),
            answers: Vec::new(),
            decided: Mono::ZERO,
            ending: None,
            lost_since: None,
            review: None,
            has_retired: false,
            seen: Seen::default(),
            unsuitable: BTreeSet::new(),
            outbox: Outbox::default(),
        };
        // A greeting before the start would report that this process remembers nothing.
        if !voter.has_to_begin() {
            voter.greet();
        }
        voter
    }

    /// `true` if this process runs the coordinator.
    pub fn coordinates(&self) -> bool {
        self.coordinator.is_some()
    }

    /// `true` if the coordinator here must see changes of keys.
    pub fn is_active(&self) -> bool {
        self.coordinator
            .as_ref()
            .is_some_and(Coordinator::is_active)
    }

    /// `true` if the connection belongs to a joined agent or to another voter.
    pub fn has_joined(&self, connection: ConnId) -> bool {
        let coordinator = self.coordinator.as_ref();
        coordinator.is_some_and(|coordinator| coordinator.has_joined(connection))
            || self.peers.at(connection).is_some()
    }

    /// `true` if this voter is ending and waits for the others to remove it.
    pub fn hands_over(&self) -> bool {
        self.ending.is_some()
    }

    /// Returns the time without an acknowledgement that ends a connection.
    pub fn silence(&self, connection: ConnId) -> Option<Duration> {
        self.coordinator.as_ref()?.silence(connection)
    }

    /// Returns the coordinator's endpoint, if this voter knows it.
    ///
    /// An open voter without a group returns the endpoint of a member of a group, which the caller
    /// can ask.
    pub fn coordinator(&self) -> Option<&str> {
        if self.group.is_none() && self.open.is_some() {
            let mut others = self.peers.all_present();
            let (index, _) = others.find(|(_, peer)| peer.group != 0)?;
            return self.settings.endpoints.get(index).map(String::as_str);
        }
        let leader = self.group.as_ref()?.consensus.role().leader?;
        let index = match leader == self.id {
            true if self.coordinates() => self.settings.own,
            true => return None,
            false => self.peers.index(leader)?,
        };
        self.settings.endpoints.get(index).map(String::as_str)
    }

    /// Returns this voter's role in its group; `None` outside a group.
    pub fn role(&self) -> Option<Role> {
        self.group.as_ref().map(|group| group.consensus.role())
    }

    fn group_id(&self) -> GroupId {
        self.group.as_ref().map_or(0, |group| group.id)
    }

    fn own_endpoint(&self) -> &str {
        let endpoints = &self.settings.endpoints;
        endpoints.get(self.settings.own).map_or("", String::as_str)
    }

    fn greet(&mut self) {
        let mut frame = Vec::new();
        let hello = ControlFrame::Hello {
            cluster: self.group_id(),
            epoch: u64::from(self.epoch),
            voter: self.id,
            is_store: self.settings.is_store,
            address: self.own_endpoint().to_owned(),
            of_run: self.open.as_ref().map(|open| OfRun {
                run: open.run().to_owned(),
                rounds: self.rounds(),
                applied: self.applied(),
                votes: self.memory(None).is_some_and(|memory| memory.votes),
            }),
        };
        hello.write(&mut frame);
        if let Some(members) = self.remembered() {
            members.write(&mut frame);
        }
        self.outbox.push(Output::Greet(frame));
    }

    fn send(&mut self, index: usize, message: &ControlFrame) {
        let mut frame = Vec::new();
        message.write(&mut frame);
        self.outbox.push(Output::ToPeer { index, frame });
    }

    /// Sends a frame to every other connected process.
    fn send_all(&mut self, message: &ControlFrame) {
        let indices: Vec<usize> = self.peers.all_present().map(|(index, _)| index).collect();
        indices
            .into_iter()
            .for_each(|index| self.send(index, message));
    }

    fn close(&mut self, connection: ConnId, why: impl Into<String>) {
        let close = coordinator::Output::Close(connection, why.into());
        self.outbox.push(Output::Coordinator(close));
    }

    fn dismiss(&mut self, connection: ConnId, why: impl Into<String>) {
        self.outbox.push(Output::Dismiss(connection, why.into()));
    }

    /// Handles a request of another voter, or of a search for the coordinator.
    fn peer_request(&mut self, now: Now, from: ConnId, code: u8, payload: &[u8]) {
        if matches!(code, opcode::MESSAGE | opcode::SNAPSHOT_PART) {
            return self.peer_message(now, from, code, payload);
        }
        match ControlFrame::read(code, payload) {
            Ok(ControlFrame::Hello {
                cluster,
                epoch,
                voter,
                is_store,
                address,
                of_run,
            }) => {
                let run = of_run.as_ref().map(|of_run| of_run.run.clone());
                let of_run = of_run.unwrap_or_default();
                let peer = Peer {
                    voter,
                    group: cluster,
                    epoch: u32::try_from(epoch).unwrap_or(0),
                    rounds: of_run.rounds,
                    applied: of_run.applied,
                    votes: of_run.votes,
                    is_store,
                    connection: Some(from),
                    since: now.mono,
                    absent_since: now.mono,
                    leaves: false,
                };
                self.introduced(now, from, (address.as_str(), run.as_deref()), peer);
            }
            Ok(ControlFrame::Invite {
                cluster,
                epoch,
                voter_index,
                voters,
            }) => {
                let group = (cluster, u32::try_from(epoch).unwrap_or(0));
                self.invited(now, from, group, voter_index, &voters);
            }
            Ok(ControlFrame::WhoCoordinates) => {
                self.asking.insert(from);
            }
            Ok(ControlFrame::Elsewhere { .. }) => {
                self.close(from, "it reported the coordinator without a request");
            }
            Ok(ControlFrame::Members(addresses)) => self.on_members(now, from, &addresses),
            Ok(ControlFrame::Leave) => self.peers.leaves(from),
            Ok(ControlFrame::Left) if self.hands_over() => self.retire(),
            Ok(ControlFrame::Left) => self.close(from, "it sent `Left` without a request"),
            Err(error) => self.close(from, format!("it sent a bad frame: {error}")),
        }
    }

    /// Answers the processes that search for the coordinator, once it is known.
    fn answer(&mut self) {
        let Some(coordinator) = self.coordinator() else {
            return;
        };
        let elsewhere = ControlFrame::Elsewhere {
            cluster: self.group_id(),
            epoch: u64::from(self.epoch),
            term: self.role().map_or(0, |role| role.term),
            address: coordinator.to_owned(),
        };
        let mut frame = Vec::new();
        elsewhere.write(&mut frame);
        for from in std::mem::take(&mut self.asking) {
            self.outbox.push(Output::Reply(from, frame.clone()));
        }
    }

    fn peer_message(&mut self, now: Now, from: ConnId, code: u8, payload: &[u8]) {
        let Some(peer) = self.peers.at(from) else {
            return self.close(
                from,
                "it sent a message of a group before it introduced itself",
            );
        };
        if peer.group != 0 && peer.group == self.group_id() {
            let received = consensus::Input::Received {
                from: peer.voter,
                opcode: code,
                payload,
            };
            self.consent(now, received);
        }
    }

    /// Passes an input to the coordinator, if it is here.
    fn coordinate(&mut self, now: Now, input: Input<'_>) {
        let Some(coordinator) = &mut self.coordinator else {
            return;
        };
        coordinator.handle(now, input);
        let mut adopted = None;
        while let Some(output) = coordinator.poll_output() {
            match output {
                // Keys are local to this process; agents receive their contents in events.
                coordinator::Output::Read(_)
                | coordinator::Output::Store { .. }
                | coordinator::Output::Remove(_) => {
                    self.outbox.push(Output::Coordinator(output));
                }
                coordinator::Output::Adopt(authority) => adopted = Some(authority),
                coordinator::Output::Confirm(token) => self.questions.push(token),
                output => self.gate.push(output),
            }
        }
        if let Some(authority) = adopted {
            self.adopt(now, authority);
        }
    }

    /// Emits the outputs that may leave, and proposes records to the group.
    fn settle(&mut self, now: Now) {
        let voters = self.group.as_ref().map_or(0, |group| group.voters.len());
        let voters = u32::try_from(voters).unwrap_or(u32::MAX);
        let known = self.coordinator.as_ref().map(Coordinator::voters);
        if known.is_some_and(|known| known != voters) {
            self.coordinate(now, Input::Voters(voters));
        }
        loop {
            while let Some(token) = self.questions.pop() {
                self.consent(now, consensus::Input::Confirm(QUESTION | token));
            }
            while let Some((token, leads)) = self.answers.pop() {
                self.coordinate(now, Input::Confirmed { token, leads });
            }
            if !self.questions.is_empty() {
                continue;
            }
            match self.gate.advance() {
                GateStep::Emit(output) => self.outbox.push(Output::Coordinator(output)),
                GateStep::Propose { token, run, note } => {
                    self.decided = now.mono;
                    let command = command::write(self.id, token, &run, note.as_ref());
                    let command = &command;
                    self.consent(now, consensus::Input::Propose { token, command });
                }
                GateStep::Wait => return,
            }
        }
    }

    fn tick(&mut self, now: Now) {
        let group = self.group.as_ref().filter(|_| !self.has_retired);
        let due = group.and_then(|group| group.consensus.deadline());
        if due.is_some_and(|due| due <= now.mono) {
            self.consent(now, consensus::Input::Tick);
        }
        if self.review.is_some_and(|due| due <= now.mono) {
            self.review = None;
            self.gate.retry();
            self.invite();
            self.invite_agents(now);
            self.change_members(now);
            self.give_up_if_lost(now);
        }
        let due = self.coordinator.as_ref().and_then(Coordinator::deadline);
        if due.is_some_and(|due| due <= now.mono) {
            self.coordinate(now, Input::Tick);
        }
        if self.hand_over_due().is_some_and(|due| due <= now.mono) {
            // After a failed attempt, the next one follows after the same time.
            self.decided = now.mono;
            self.hand_over_to_store(now);
        }
        if self.ending.is_some_and(|deadline| deadline <= now.mono) {
            self.give_up_hand_over();
        }
    }

    /// Ends without a handover; agents of the coordinator here search for another.
    pub(super) fn give_up_hand_over(&mut self) {
        self.step_down(self.role().map_or(0, |role| role.term));
        self.retire();
    }
}

fn draw(random: &mut fastrand::Rng) -> VoterId {
    loop {
        if let Some(id) = VoterId::new(random.u64(1..)) {
            return id;
        }
    }
}

impl Machine for Voter {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        self.begin_open(now);
        match input {
            Input::Request {
                from,
                opcode: code,
                payload,
            } if (opcode::HELLO..=opcode::MEMBERS).contains(&code) => {
                self.peer_request(now, from, code, payload);
                self.note_heard(now, from);
                let is_leaving = self.hands_over() || self.peers.all_leaving().next().is_some();
                if is_leaving || !matches!(code, opcode::MESSAGE | opcode::SNAPSHOT_PART) {
                    self.change_members(now);
                    self.invite();
                }
            }
            Input::Request { from, .. } if self.coordinator.is_none() => {
                self.dismiss(from, "this voter is not the coordinator");
            }
            Input::Request {
                from,
                opcode: code,
                payload,
            } => {
                self.agents.insert(from);
                self.agent_request(now, from, code, payload);
                self.coordinate(now, input);
            }
            Input::Closed(connection) => {
                self.agents.remove(&connection);
                self.asking.remove(&connection);
                self.agent_closed(connection);
                if let Some(peer) = self.peers.closed(now.mono, connection) {
                    if self.hands_over() && self.peers.all_present().next().is_none() {
                        self.give_up_hand_over();
                    } else if !self.has_retired {
                        self.consent(now, consensus::Input::PeerDown(peer));
                    }
                } else {
                    self.coordinate(now, input);
                }
            }
            Input::Ending => self.end(now),
            Input::Tick => self.tick(now),
            Input::Silent(_)
            | Input::EndOfStream { .. }
            | Input::Found { .. }
            | Input::Touching { .. }
            | Input::Stored { .. }
            | Input::Voters(_)
            | Input::Confirmed { .. } => self.coordinate(now, input),
        }
        self.settle(now);
        self.tell_changes();
        if !self.asking.is_empty() {
            self.answer();
        }
        self.plan_review(now);
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        let group = self.group.as_ref().filter(|_| !self.has_retired);
        let group = group.and_then(|group| group.consensus.deadline());
        let coordinator = self.coordinator.as_ref().and_then(Coordinator::deadline);
        let hand_over = self.hand_over_due();
        if self.has_to_begin() {
            return Some(Mono::ZERO);
        }
        earliest([group, coordinator, hand_over, self.ending, self.review])
    }
}
