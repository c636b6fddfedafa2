//! The machine of a voter: which input goes where, who leads, and what follows from that.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rdzv_consensus::membership::{self, Next as NextChange, View};
use rdzv_consensus::wire::{Frame, opcode};
use rdzv_consensus::{self as consensus, Configuration, Consensus, Role, VoterId};
use rdzv_core::ident::ConnId;
use rdzv_core::machine::{Machine, Outbox};
use rdzv_core::time::{Mono, Now};

use super::command;
use super::gate::{Gate, Next};
use super::peers::Peers;
use super::{Fact, Output, Settings};
use crate::coordinator::note::{read_runs, write_runs};
use crate::coordinator::wire::Authority;
use crate::coordinator::{self, Coordinator, Input, Note, Origin, RunNote};
use crate::slot::Bytes;

/// The time in which a coordinator that ends in order hands over.
const HAND_OVER_WITHIN: Duration = Duration::from_millis(300);

/// The time for which a group has to look lost before its members leave it. If there were a majority that this member does
/// not know of, it would have elected a leader by then.
const LOST_AFTER: Duration = Duration::from_millis(1500);

/// A voter.
#[derive(Debug)]
pub struct Voter {
    settings: Settings,
    random: fastrand::Rng,
    /// This process in its group.
    id: VoterId,
    /// The number of groups that were lost before its group, or before the next one.
    epoch: u32,
    peers: Peers,
    /// Its group, once it is in one.
    group: Option<Group>,
    /// The coordinator, if this voter leads.
    coordinator: Option<Coordinator>,
    gate: Gate,
    /// Connections of agents that have asked the coordinator for something.
    agents: BTreeSet<ConnId>,
    /// Connections of those who wait until it is known where the coordinator is.
    asking: BTreeSet<ConnId>,
    /// Until when it waits for a successor, if it is about to end.
    ending: Option<Mono>,
    /// Since when its group looks as if it could never decide again.
    lost_since: Option<Mono>,
    has_retired: bool,
    outbox: Outbox<Output>,
}

/// This process' part in a group.
#[derive(Debug)]
struct Group {
    cluster: u64,
    consensus: Consensus,
    /// The voters of the beginning by their places, if this process is one of them.
    founders: Vec<VoterId>,
    /// The runs, as far as they are committed.
    runs: BTreeMap<String, RunNote>,
    /// The place of the coordinator that people were told of last, and the leader that is known now.
    announced: Option<usize>,
    leader: Option<usize>,
    voters: BTreeSet<VoterId>,
}

impl Voter {
    /// The process at a place, which is in no group yet.
    pub fn new(settings: Settings) -> Self {
        let mut random = fastrand::Rng::with_seed(settings.seed);
        let mut voter = Self {
            id: draw(&mut random),
            epoch: 0,
            settings,
            random,
            peers: Peers::default(),
            group: None,
            coordinator: None,
            gate: Gate::default(),
            agents: BTreeSet::new(),
            asking: BTreeSet::new(),
            ending: None,
            lost_since: None,
            has_retired: false,
            outbox: Outbox::default(),
        };
        voter.greet();
        voter
    }

    /// Whether the coordinator is here.
    pub fn coordinates(&self) -> bool {
        self.coordinator.is_some()
    }

    /// Whether what happens to keys concerns the coordinator here.
    pub fn is_active(&self) -> bool {
        self.coordinator
            .as_ref()
            .is_some_and(Coordinator::is_active)
    }

    /// Whether a connection is that of an agent which has joined, or of another voter.
    pub fn has_joined(&self, connection: ConnId) -> bool {
        let coordinator = self.coordinator.as_ref();
        coordinator.is_some_and(|coordinator| coordinator.has_joined(connection))
            || self.peers.at(connection).is_some()
    }

    /// The endpoint of the coordinator, as far as this voter knows.
    pub fn coordinator(&self) -> Option<&str> {
        let leader = self.group.as_ref()?.consensus.role().leader?;
        let place = match leader == self.id {
            true if self.coordinates() => self.settings.own,
            true => return None,
            false => self.peers.place(leader)?,
        };
        self.settings.places.get(place).map(String::as_str)
    }

    /// The part of this voter in its group, if it is in one.
    pub fn role(&self) -> Option<Role> {
        self.group.as_ref().map(|group| group.consensus.role())
    }

    fn cluster(&self) -> u64 {
        self.group.as_ref().map_or(0, |group| group.cluster)
    }

    fn own_place(&self) -> &str {
        let places = &self.settings.places;
        places.get(self.settings.own).map_or("", String::as_str)
    }

    fn greet(&mut self) {
        let mut frame = Vec::new();
        let hello = Frame::Hello {
            cluster: u128::from(self.cluster()),
            epoch: u64::from(self.epoch),
            voter: self.id,
            instance: String::new(),
            address: self.own_place().to_owned(),
        };
        hello.write(&mut frame);
        self.outbox.push(Output::Greet(frame));
    }

    fn close(&mut self, connection: ConnId, why: impl Into<String>) {
        let close = coordinator::Output::Close(connection, why.into());
        self.outbox.push(Output::Coordinator(close));
    }

    fn dismiss(&mut self, connection: ConnId, why: impl Into<String>) {
        self.outbox.push(Output::Dismiss(connection, why.into()));
    }

    /// A request of another voter, or of somebody who looks for the coordinator.
    fn peer_request(&mut self, now: Now, from: ConnId, code: u8, payload: &[u8]) {
        if matches!(code, opcode::MESSAGE | opcode::SNAPSHOT_PART) {
            return self.peer_message(now, from, code, payload);
        }
        match Frame::read(code, payload) {
            Ok(Frame::Hello {
                cluster,
                epoch,
                voter,
                address,
                ..
            }) => {
                let group = (number(cluster), u32::try_from(epoch).unwrap_or(0));
                self.introduced(now, from, group, voter, &address);
            }
            Ok(Frame::Invite {
                cluster,
                epoch,
                place,
                voters,
            }) => {
                let group = (number(cluster), u32::try_from(epoch).unwrap_or(0));
                self.invited(now, from, group, place, &voters);
            }
            Ok(Frame::WhoCoordinates) => {
                self.asking.insert(from);
            }
            Ok(Frame::Elsewhere { .. }) => {
                self.close(from, "it said where the coordinator is, unasked");
            }
            Err(error) => self.close(from, format!("it sent a bad frame: {error}")),
        }
    }

    /// Answers those who look for the coordinator, once it is known where that is.
    fn answer(&mut self) {
        let Some(coordinator) = self.coordinator() else {
            return;
        };
        let elsewhere = Frame::Elsewhere {
            cluster: u128::from(self.cluster()),
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
                "it sent a message of a group before it said who it is",
            );
        };
        if peer.cluster != 0 && peer.cluster == self.cluster() {
            let received = consensus::Input::Received {
                from: peer.voter,
                opcode: code,
                payload,
            };
            self.consent(now, received);
        }
    }

    /// The process at another place has said who it is.
    fn introduced(
        &mut self,
        now: Now,
        from: ConnId,
        (cluster, epoch): (u64, u32),
        voter: VoterId,
        address: &str,
    ) {
        let mut places = self.settings.places.iter();
        let place = places.position(|place| place == address);
        let Some(place) = place.filter(|place| *place != self.settings.own) else {
            let why =
                "its endpoint is none of the other voters'; start all agents with the same list";
            self.unsuitable(address, why);
            return self.close(from, why);
        };
        let introduction = (voter, cluster, epoch);
        let new = (self.peers).introduce(now.mono, place, from, introduction);
        if let Some(old) = new.replaced {
            self.dismiss(old, "the process at its place has another connection");
        }
        if let Some(ended) = new.ended {
            self.consent(now, consensus::Input::PeerDown(ended));
        }
        if cluster != 0 && cluster == self.cluster() {
            if new.is_new {
                self.consent(now, consensus::Input::PeerUp(voter));
            }
        } else if cluster != 0 && self.group.is_some() {
            self.unsuitable(address, "it is in another group");
        }
        self.found_if_all_are_here(now);
    }

    fn unsuitable(&mut self, address: &str, why: &'static str) {
        self.outbox.push(Output::Log(Fact::Unsuitable {
            place: address.to_owned(),
            why,
        }));
    }

    /// Founds a group, if this is the process to do so, and every other place has said that it is in none.
    fn found_if_all_are_here(&mut self, now: Now) {
        if self.group.is_some() || self.settings.own != 0 || self.has_retired {
            return;
        }
        let mut voters = vec![self.id];
        for place in 1..self.settings.places.len() {
            let peer = self.peers.present(place).filter(|peer| peer.cluster == 0);
            let Some(peer) = peer else {
                return;
            };
            self.epoch = self.epoch.max(peer.epoch);
            voters.push(peer.voter);
        }
        let cluster = self.random.u64(1..);
        self.bootstrap(now, cluster, voters);
    }

    /// This process is a voter of a new group.
    fn bootstrap(&mut self, now: Now, cluster: u64, voters: Vec<VoterId>) {
        let (id, settings) = (self.id, consensus::Settings::default());
        let consensus = Consensus::bootstrap(now, settings, id, &voters, &[]);
        self.outbox.push(Output::Log(Fact::Founded {
            voters: self.settings.places.clone(),
        }));
        self.enter(cluster, consensus, voters);
    }

    fn enter(&mut self, cluster: u64, consensus: Consensus, founders: Vec<VoterId>) {
        self.group = Some(Group {
            cluster,
            voters: consensus.configuration().voters.clone(),
            consensus,
            founders,
            runs: BTreeMap::new(),
            announced: None,
            leader: None,
        });
        self.greet();
    }

    /// Another voter has this process take part in a group.
    fn invited(
        &mut self,
        now: Now,
        from: ConnId,
        (cluster, epoch): (u64, u32),
        place: u8,
        voters: &[VoterId],
    ) {
        let Some(peer) = self.peers.at(from) else {
            return self.close(from, "it sent an invitation before it said who it is");
        };
        if self.group.is_some() || self.has_retired || cluster == 0 || peer.cluster != cluster {
            return;
        }
        self.epoch = epoch;
        if !voters.contains(&self.id) {
            let settings = consensus::Settings::default();
            let consensus = Consensus::join(now, settings, self.id, place);
            self.enter(cluster, consensus, Vec::new());
            return self.consent(now, consensus::Input::PeerUp(peer.voter));
        }
        let is_own = voters.get(self.settings.own) == Some(&self.id);
        if !is_own || voters.len() != self.settings.places.len() {
            let address = self.endpoint(self.peers.place(peer.voter).unwrap_or(0));
            return self.unsuitable(
                &address,
                "it has the voters in another order; start all agents with the same list",
            );
        }
        self.bootstrap(now, cluster, voters.to_vec());
        self.consent(now, consensus::Input::PeerUp(peer.voter));
    }

    /// Invites those who are in no group and belong to this one.
    fn invite(&mut self) {
        let Some(group) = &self.group else {
            return;
        };
        let (leads, configuration) = (group.consensus.role().leads, group.consensus.appended());
        let mut invitations = Vec::new();
        for (at, peer) in self
            .peers
            .all_present()
            .filter(|(_, peer)| peer.cluster == 0)
        {
            let founder = group
                .founders
                .iter()
                .position(|founder| *founder == peer.voter);
            let place = configuration.places.get(&peer.voter).filter(|_| leads);
            let (place, voters) = match (founder, place) {
                (Some(place), _) => (place as u8, group.founders.clone()),
                (None, Some(place)) => {
                    let voters = group.voters.iter().copied();
                    (
                        *place,
                        voters.filter(|voter| *voter != peer.voter).collect(),
                    )
                }
                (None, None) => continue,
            };
            let mut frame = Vec::new();
            let invite = Frame::Invite {
                cluster: u128::from(group.cluster),
                epoch: u64::from(self.epoch),
                place,
                voters,
            };
            invite.write(&mut frame);
            invitations.push((at, frame));
        }
        for (place, frame) in invitations {
            self.outbox.push(Output::ToPeer { place, frame });
        }
    }

    /// Has a new process vote in place of one that has ended, if there is one; at the leader.
    fn replace_ended(&mut self, now: Now) {
        let Some(group) = self.group.as_ref().filter(|_| self.coordinator.is_some()) else {
            return;
        };
        let configuration = group.consensus.configuration();
        let own = (self.settings.own, self.id);
        let places = self.settings.places.len();
        let present: Vec<VoterId> = (self.peers.all_present())
            .map(|(_, peer)| peer.voter)
            .collect();
        let is_settled = configuration.learners.is_empty()
            && (present.iter()).all(|peer| configuration.voters.contains(peer));
        if is_settled || group.consensus.is_changing() || self.ending.is_some() {
            return;
        }
        let members = configuration.members();
        let candidates = (self.peers).candidates(group.cluster, own, &members, places);
        // One that has acknowledged nothing yet could not help to elect the next leader.
        let (last, committed) = (group.consensus.last().0, group.consensus.committed());
        let has_all = |member: &VoterId| {
            let lag = group.consensus.lag(*member);
            lag.is_some_and(|lag| last.saturating_sub(lag) >= committed)
        };
        let caught_up = members.iter().copied().filter(has_all);
        let next = membership::next(&View {
            leader: self.id,
            leader_ends: false,
            configuration,
            candidates: &candidates,
            caught_up: &caught_up.collect(),
            most: places,
        });
        if let NextChange::Change(change) = next {
            self.consent(now, consensus::Input::Change(&change));
        }
    }

    /// Leaves a group that can never decide again, to found another one with the others. It is as if this process had been
    /// started anew.
    fn give_up_if_lost(&mut self, now: Now) {
        let Some(group) = &self.group else {
            return;
        };
        let mut alive: BTreeSet<VoterId> = [self.id].into();
        alive.extend(self.peers.all_present().map(|(_, peer)| peer.voter));
        let is_lost = alive.len() == self.settings.places.len()
            && group.consensus.role().leader.is_none()
            && !has_majority(group.consensus.configuration(), &alive);
        self.lost_since = match is_lost && self.ending.is_none() {
            true => self.lost_since.or(Some(now.mono)),
            false => None,
        };
        let Some(since) = self.lost_since else {
            return;
        };
        if now.mono.since(since) >= LOST_AFTER {
            let role = group.consensus.role();
            self.step_down(role.term);
            (self.group, self.lost_since) = (None, None);
            self.id = draw(&mut self.random);
            self.epoch = self.epoch.saturating_add(1);
            self.outbox.push(Output::Log(Fact::GaveUp));
            self.greet();
            self.found_if_all_are_here(now);
        }
    }

    /// Hands something to the group, and does what follows.
    fn consent(&mut self, now: Now, input: consensus::Input<'_>) {
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
                if let Some(place) = self.peers.place(to) {
                    self.outbox.push(Output::ToPeer { place, frame });
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
                if command.proposer == self.id.number() {
                    self.gate.committed(command.token);
                }
            }
            consensus::Output::Restore { state, .. } => {
                group.runs = read_runs(Bytes(&state)).unwrap_or_default();
            }
            consensus::Output::TakeSnapshot => next.push_back(Then::Snapshot),
            consensus::Output::Configuration(configuration) => self.in_force(group, &configuration),
            consensus::Output::Role(role) => {
                if !role.leads {
                    self.step_down(role.term);
                } else if self.coordinator.is_none() {
                    next.push_back(Then::Confirm(role.term));
                }
                self.announce_leader(group, &role);
            }
            consensus::Output::Confirmed(term) => {
                let role = group.consensus.role();
                if role.leads && role.term == term && self.coordinator.is_none() {
                    self.begin(now, group, term);
                }
            }
            consensus::Output::Dropped(token) => self.gate.refused(token),
            consensus::Output::Close { peer, reason } => {
                let place = self.peers.place(peer);
                let peer = place.and_then(|place| self.peers.present(place));
                if let Some(connection) = peer.and_then(|peer| peer.connection) {
                    self.close(connection, reason);
                }
            }
            // Nothing is kept on disk. An unconfirmed leader does not lead any more; a change is tried again.
            consensus::Output::Note(_)
            | consensus::Output::Unconfirmed(_)
            | consensus::Output::Unchanged(_) => {}
        }
    }

    fn in_force(&mut self, group: &mut Group, configuration: &Configuration) {
        for voter in configuration.voters.difference(&group.voters) {
            if let Some(place) = self.peers.place(*voter) {
                let place = self.endpoint(place);
                self.log(group, Fact::Replaced { place });
            }
        }
        group.voters.clone_from(&configuration.voters);
    }

    /// Tells people where the coordinator is, if that has changed.
    fn announce_leader(&mut self, group: &mut Group, role: &Role) {
        let place = match role.leader {
            // It is announced when it has the coordinator.
            Some(leader) if leader == self.id => return,
            Some(leader) => self.peers.place(leader),
            None => None,
        };
        let was = std::mem::replace(&mut group.leader, place);
        match place {
            Some(_) if place == group.announced => {}
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
                if let Some(was) = was {
                    let coordinator = self.endpoint(was);
                    self.log(group, Fact::Leaderless { coordinator });
                }
            }
        }
    }

    /// The endpoint of the coordinator that people know, now that they are told of another one.
    fn announced_before(&self, group: &mut Group, place: usize) -> Option<String> {
        let before = group.announced.replace(place);
        before.map(|before| self.endpoint(before))
    }

    fn endpoint(&self, place: usize) -> String {
        let endpoint = self.settings.places.get(place).cloned();
        endpoint.unwrap_or_default()
    }

    /// Logs something about the group, unless everything it was there for is over.
    fn log(&mut self, group: &Group, fact: Fact) {
        let mut runs = group.runs.values();
        let is_over = !group.runs.is_empty() && runs.all(|note| note.closed);
        if !is_over && !self.has_retired {
            self.outbox.push(Output::Log(fact));
        }
    }

    /// This voter leads, and has everything that was committed before.
    fn begin(&mut self, now: Now, group: &mut Group, term: u64) {
        let authority = Authority {
            cluster: group.cluster,
            epoch: u32::try_from(term).unwrap_or(u32::MAX),
            timeout: self.settings.timeout,
        };
        let note = Note {
            authority,
            is_partial: false,
            runs: group.runs.clone(),
        };
        // Of coordinators of this group everything is known, so there is nothing to take over.
        let origin = Origin {
            forgotten: self.epoch,
            ..Origin::default()
        };
        self.coordinator = Some(Coordinator::restartable(now, note, origin));
        group.leader = Some(self.settings.own);
        if group.announced != group.leader {
            let before = self.announced_before(group, self.settings.own);
            self.log(group, Fact::Coordinates { before, term });
        }
    }

    /// Another voter leads, or nobody: nothing that was not sent yet is sent.
    fn step_down(&mut self, term: u64) {
        if self.coordinator.take().is_some() {
            self.gate.clear();
            for agent in std::mem::take(&mut self.agents) {
                self.dismiss(
                    agent,
                    format!("this is not the coordinator any more (term {term})"),
                );
            }
            self.outbox.push(Output::SteppedDown);
        }
        if self.ending.is_some() {
            self.retire();
        }
    }

    /// The process is about to end, by its own decision.
    fn end(&mut self, now: Now) {
        let coordinator = self.coordinator.as_ref();
        if coordinator.is_some_and(|coordinator| !coordinator.is_over()) {
            self.ending = Some(now.mono + HAND_OVER_WITHIN);
            self.consent(now, consensus::Input::Transfer(None));
        } else {
            self.retire();
        }
    }

    /// Takes no part in the group any more.
    fn retire(&mut self) {
        if std::mem::replace(&mut self.has_retired, true) {
            return;
        }
        self.ending = None;
        self.gate.open();
        self.outbox.push(Output::Retire);
        let connections = self
            .peers
            .all_present()
            .filter_map(|(_, peer)| peer.connection);
        for connection in connections.collect::<Vec<_>>() {
            self.dismiss(connection, "this voter ends");
        }
    }

    /// Hands an input to the coordinator, if it is here.
    fn coordinate(&mut self, now: Now, input: Input<'_>) {
        let Some(coordinator) = &mut self.coordinator else {
            return;
        };
        coordinator.handle(now, input);
        while let Some(output) = coordinator.poll_output() {
            match output {
                // Keys are this process' own; agents are told of what stands in them.
                coordinator::Output::Read(_)
                | coordinator::Output::Store { .. }
                | coordinator::Output::Remove(_) => {
                    self.outbox.push(Output::Coordinator(output));
                }
                coordinator::Output::Adopt(_) => {}
                output => self.gate.push(output),
            }
        }
    }

    /// Lets out what may leave, and has notes replicated.
    fn settle(&mut self, now: Now) {
        loop {
            match self.gate.next() {
                Next::Emit(output) => self.outbox.push(Output::Coordinator(output)),
                Next::Propose { token, run, note } => {
                    let command = command::write(self.id, token, &run, note.as_ref());
                    let command = &command;
                    self.consent(now, consensus::Input::Propose { token, command });
                }
                Next::Wait => return,
            }
        }
    }

    fn tick(&mut self, now: Now) {
        let group = self.group.as_ref().filter(|_| !self.has_retired);
        let due = group.and_then(|group| group.consensus.deadline());
        if due.is_some_and(|due| due <= now.mono) {
            self.consent(now, consensus::Input::Tick);
            self.gate.retry();
            self.invite();
            self.replace_ended(now);
            self.give_up_if_lost(now);
        }
        let due = self.coordinator.as_ref().and_then(Coordinator::deadline);
        if due.is_some_and(|due| due <= now.mono) {
            self.coordinate(now, Input::Tick);
        }
        if self.ending.is_some_and(|until| until <= now.mono) {
            // Nobody has taken over: the agents look for another one.
            self.step_down(self.role().map_or(0, |role| role.term));
        }
    }
}

/// Whether these could elect a leader. A member that has not been told of any voter cannot know.
fn has_majority(configuration: &Configuration, alive: &BTreeSet<VoterId>) -> bool {
    !configuration.voters.is_empty() && configuration.is_majority(alive)
}

/// The number of a group, as far as it is one.
fn number(cluster: u128) -> u64 {
    u64::try_from(cluster).unwrap_or(u64::MAX)
}

/// A number that no other process draws.
fn draw(random: &mut fastrand::Rng) -> VoterId {
    loop {
        if let Some(id) = VoterId::new(random.u64(1..)) {
            return id;
        }
    }
}

/// An input for the group that follows from one of its outputs.
enum Then {
    Confirm(u64),
    Snapshot,
}

impl Machine for Voter {
    type Input<'a> = Input<'a>;
    type Output = Output;

    fn handle(&mut self, now: Now, input: Input<'_>) {
        self.outbox.assert_drained();
        match input {
            Input::Request {
                from,
                opcode: code,
                payload,
            } if (opcode::HELLO..=opcode::ELSEWHERE).contains(&code) => {
                self.peer_request(now, from, code, payload);
                if !matches!(code, opcode::MESSAGE | opcode::SNAPSHOT_PART) {
                    self.replace_ended(now);
                    self.invite();
                }
            }
            Input::Request { from, .. } if self.coordinator.is_none() => {
                self.dismiss(from, "this voter is not the coordinator");
            }
            Input::Request { from, .. } => {
                self.agents.insert(from);
                self.coordinate(now, input);
            }
            Input::Closed(connection) => {
                self.agents.remove(&connection);
                self.asking.remove(&connection);
                if let Some(peer) = self.peers.closed(connection) {
                    if !self.has_retired {
                        self.consent(now, consensus::Input::PeerDown(peer));
                    }
                } else {
                    self.coordinate(now, input);
                }
            }
            Input::Ending => self.end(now),
            Input::Tick => self.tick(now),
            Input::Found { .. } | Input::Touching { .. } | Input::Stored { .. } => {
                self.coordinate(now, input);
            }
        }
        self.settle(now);
        if !self.asking.is_empty() {
            self.answer();
        }
    }

    fn poll_output(&mut self) -> Option<Output> {
        self.outbox.pop()
    }

    fn deadline(&self) -> Option<Mono> {
        let group = self.group.as_ref().filter(|_| !self.has_retired);
        let group = group.and_then(|group| group.consensus.deadline());
        let coordinator = self.coordinator.as_ref().and_then(Coordinator::deadline);
        [group, coordinator, self.ending]
            .into_iter()
            .flatten()
            .min()
    }
}
