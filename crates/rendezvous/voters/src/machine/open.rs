//! A group that agents may join: it starts with one voter and can grow.
//!
//! ```text
//!   coordinator ── Attached, takes voters ──► agent       coordinator ── Voters, invites ──► agent
//!               ◄──── Candidate, willing ──── agent       its new voter ── Hello ──► all members
//!                                                         leader ── Members ──► each member
//! ```
//!
//! Once a round was announced, the leader invites willing agents to become voters, up to the size
//! that the group may have. An invited agent starts a server, and the server introduces itself to
//! all members. It learns the log and votes when the number of candidates allows
//! (`rdzv_consensus::membership`). Of one or two candidates, one votes; of three or four, three do.
//!
//! A member without a connection counts as lost. Another candidate replaces it as soon as that has
//! the log. Without such a candidate, the group shrinks one second later. This is safe even if the
//! member is alive, because a majority agrees to the change. A member that returns is a candidate
//! again.
//!
//! Every member connects to the process at the job's endpoint. A new process there may have founded
//! its own group because no process reported an existing one. It leaves that group if the group has
//! no round: the group with the later round remains.
//!
//! Agents of torchrun, and agents without a program, can find the coordinator only at the endpoint.
//! With such agents, the group has only one voter, the one at the endpoint.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use rdzv_consensus::membership::target;
use rdzv_consensus::wire::ControlFrame;
use rdzv_consensus::{self as consensus, Configuration, Consensus, VoterId};
use rdzv_core::endpoint::bare_host;
use rdzv_core::ident::ConnId;
use rdzv_core::time::{Mono, Now};

use super::agents::Agents;
use super::takeover::{self, Memory};
use super::{Group, GroupId, Voter, cluster_of};
use crate::peers::Whereabouts;
use crate::{Fact, Open, Output, Start};
use rdzv_rendezvous_proto::Rule;
use rdzv_rendezvous_proto::coordinator::note::write_runs;
use rdzv_rendezvous_proto::coordinator::wire::{Authority, Event, Operation, VoterList};
use rdzv_rendezvous_proto::coordinator::{self, Note, Origin};
use rdzv_store_proto::wire::request::rendezvous as opcode;

/// Maximum number of addresses that are known at the same time.
const MOST_ENDPOINTS: usize = 32;

/// A voter's knowledge of a group that agents may join.
#[derive(Debug, Default)]
pub(super) struct OpenGroup {
    run: String,
    most: usize,
    /// Way into the group; `None` after the start.
    start: Option<Start>,
    /// Origin of the coordinator, if this process founded a group alone.
    origin: Origin,
    /// `true` if the next coordinator here does not follow a replicated log.
    begins_alone: bool,
    is_partial: bool,
    /// Memory of the previous group, while this process is in no group.
    pub(super) memory: Option<Memory>,
    agents: Agents,
    /// Member addresses that agents received last, and the number of voters.
    ///
    /// The voters come first.
    announced: (Vec<String>, u8),
    /// Members that the other voters received last.
    announced_members: Vec<(Option<VoterId>, String)>,
    /// Time since which this process leads.
    leads_since: Mono,
    /// `true` if members may have changed since the last message about them.
    has_changed: bool,
    /// Result of [`Voter::rounds`] at the last check; `true` if this process voted.
    greeted: (u32, bool),
}

impl OpenGroup {
    pub(super) fn new(open: Open) -> Self {
        Self {
            run: open.run,
            most: open.most,
            start: Some(open.start),
            ..Self::default()
        }
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    /// Marks the knowledge of the next coordinator as partial.
    ///
    /// Runs may have had rounds that it does not know.
    pub(super) fn begin_partial(&mut self) {
        (self.begins_alone, self.is_partial) = (true, true);
    }

    /// Forgets the origin, because other processes may have decided since.
    pub(super) fn leaves_group(&mut self, memory: Option<Memory>) {
        (self.memory, self.origin) = (memory, Origin::default());
    }

    /// Returns the origin of a coordinator that follows no replicated log, once.
    ///
    /// The flag is `true` if its knowledge is partial.
    pub(super) fn origin(&mut self) -> Option<(Origin, bool)> {
        let begins_alone = std::mem::take(&mut self.begins_alone);
        begins_alone.then(|| (self.origin.clone(), self.is_partial))
    }

    /// Returns the location of a candidate, by its address.
    ///
    /// Candidates on a machine or network that is already used are less preferred.
    pub(super) fn whereabouts(address: &str) -> Whereabouts {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let network = match bare_host(host).parse() {
            Ok(std::net::IpAddr::V4(ip)) => host_hash(&ip.octets()[..3]),
            Ok(std::net::IpAddr::V6(ip)) => host_hash(&ip.octets()[..8]),
            Err(_) => host_hash(host.as_bytes()),
        };
        Whereabouts {
            machine: host_hash(host.as_bytes()),
            network,
            position: None,
        }
    }
}

/// Returns a hash that is stable within this process.
fn host_hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Voter {
    /// `true` if the voter must found or remember a group at the first input.
    pub(super) fn has_to_begin(&self) -> bool {
        let start = self.open.as_ref().and_then(|open| open.start.as_ref());
        matches!(start, Some(Start::Alone { .. } | Start::Returns { .. }))
    }

    /// Handles the start at the first input: a process alone founds a group.
    pub(super) fn begin_open(&mut self, now: Now) {
        let Some(open) = &mut self.open else { return };
        match open.start.take() {
            Some(Start::Alone { note, origin }) => {
                (open.origin, open.begins_alone, open.is_partial) = (origin, true, note.is_partial);
                self.go_on_alone(now, Memory::of_note(*note));
            }
            Some(Start::Returns { note }) => {
                open.memory = Memory::of_member(*note);
                self.greet();
            }
            Some(Start::Invited) | None => {}
        }
    }

    /// Founds a group of this process alone, from a record or a memory.
    pub(super) fn go_on_alone(&mut self, now: Now, memory: Memory) {
        let Memory {
            cluster,
            term,
            runs,
            ..
        } = memory;
        let mut state = Vec::new();
        write_runs(&runs, &mut state);
        let (id, settings) = (self.id, self.settings.consensus());
        let rules = self.settings.rules;
        let after = if rules.has(Rule::TermsGoOn) { term } else { 0 };
        let consensus = Consensus::bootstrap(now, settings, id, &[id], &state, after);
        let number = if rules.has(Rule::GroupsAreNumbered) {
            term.max(1)
        } else {
            1
        };
        let group = GroupId::from(number) << 64 | GroupId::from(cluster);
        self.enter(group, consensus, Vec::new());
        if let Some(group) = &mut self.group {
            group.runs = runs;
        }
        self.greet();
        self.consent(now, consensus::Input::Tick);
    }

    /// Continues a cluster that was unknown to the coordinator of this group.
    ///
    /// This process is the only voter of the group.
    pub(super) fn adopt(&mut self, now: Now, authority: Authority) {
        let Some(open) = &mut self.open else { return };
        open.is_partial = true;
        let runs = self.group.take().map(|group| group.runs);
        let mut memory = Memory {
            cluster: authority.cluster,
            term: u64::from(authority.epoch).saturating_sub(1),
            runs: runs.unwrap_or_default(),
            votes: true,
            ..Memory::default()
        };
        memory.outdate(open.run());
        self.go_on_alone(now, memory);
        self.write_note(None);
    }

    /// Writes the record for the next process here.
    ///
    /// `group` is the current group while it is taken out of `self`.
    pub(super) fn write_note(&mut self, group: Option<&Group>) {
        if self.open.is_none() {
            return;
        }
        let memory = self.memory(group).unwrap_or_else(|| self.known_endpoints());
        let note = Note {
            authority: Authority {
                cluster: memory.cluster,
                epoch: u32::try_from(memory.term).unwrap_or(u32::MAX),
                timeout: self.settings.timeout,
                takes_voters: true,
                in_process: false,
            },
            is_partial: self.open.as_ref().is_some_and(|open| open.is_partial),
            voters: memory.others,
            address: self.own_endpoint().to_owned(),
            applied: memory.applied,
            votes: memory.votes,
            runs: memory.runs,
        };
        self.outbox.push(Output::Note(Box::new(note)));
    }

    /// Returns the endpoint index of an address, and starts to connect to it.
    ///
    /// `None` if there is no room for another address.
    pub(super) fn call_at(&mut self, address: &str) -> Option<usize> {
        let endpoints = &mut self.settings.endpoints;
        if let Some(known) = endpoints.iter().position(|endpoint| endpoint == address) {
            return Some(known);
        }
        let free = endpoints.iter().position(String::is_empty);
        let index = match free {
            Some(free) => {
                address.clone_into(&mut endpoints[free]);
                free
            }
            None if endpoints.len() < MOST_ENDPOINTS => {
                endpoints.push(address.to_owned());
                endpoints.len() - 1
            }
            None => return None,
        };
        self.outbox.push(Output::Call {
            index,
            address: Some(address.to_owned()),
        });
        Some(index)
    }

    /// Stops connecting to disconnected processes that are not members.
    ///
    /// The job's endpoint stays, because another process may start there.
    fn forget_absent(&mut self, configuration: &Configuration) {
        for index in 1..self.settings.endpoints.len() {
            let is_needed = |voter: VoterId| configuration.has(voter);
            if index != self.settings.own && self.peers.forget_absent(index, is_needed) {
                self.settings.endpoints[index].clear();
                self.outbox.push(Output::Call {
                    index,
                    address: None,
                });
            }
        }
    }

    pub(super) fn open_in_force(&mut self, group: &Group, configuration: &Configuration) {
        let mut others = configuration.voters.clone();
        let own = others.take(&self.id);
        let voters = self.addresses(own.iter().chain(&others));
        let learners = self.addresses(&configuration.learners);
        if group.consensus.role().leads {
            if voters.len() + learners.len() > 1 || group.voters.len() > 1 {
                self.log(group, Fact::Voters { voters, learners });
            }
            self.forget_absent(configuration);
        }
        self.members_changed(group);
    }

    pub(super) fn addresses<'a>(
        &self,
        members: impl IntoIterator<Item = &'a VoterId>,
    ) -> Vec<String> {
        let indices = members.into_iter().filter_map(|id| self.index_of(*id));
        indices.map(|index| self.endpoint(index)).collect()
    }

    /// Sends the members' addresses to agents and members, if they have changed.
    pub(super) fn tell_members(&mut self) {
        let Some(group) = self.group.as_ref().filter(|_| self.coordinates()) else {
            return;
        };
        let configuration = group.consensus.appended();
        let succession = configuration.succession(self.id);
        let voters = succession.iter().filter(|it| configuration.is_voter(**it));
        let learners = &configuration.learners;
        let learners = succession.iter().filter(|it| learners.contains(it));
        let mut addresses = self.addresses([self.id].iter().chain(voters));
        let count = u8::try_from(addresses.len()).unwrap_or(u8::MAX);
        addresses.extend(self.addresses(learners));
        let members = self.members_of(configuration);
        let Some(open) = &mut self.open else { return };
        let announced = (addresses, count);
        let was = std::mem::replace(&mut open.announced, announced.clone());
        let agents: Vec<ConnId> = open.agents.all().filter(|_| was != announced).collect();
        if std::mem::replace(&mut open.announced_members, members.clone()) != members {
            self.send_all(&ControlFrame::Members(members));
        }
        agents.into_iter().for_each(|agent| self.tell_agent(agent));
    }

    /// Returns the members of a configuration whose addresses are known.
    fn members_of(&self, configuration: &Configuration) -> Vec<(Option<VoterId>, String)> {
        let address = |member: VoterId| {
            if member == self.id {
                Some(self.endpoint(self.settings.own))
            } else {
                self.peers.address(member).map(str::to_owned)
            }
        };
        let members = configuration.members().into_iter();
        let members = members.filter_map(|member| Some((Some(member), address(member)?)));
        members.collect()
    }

    /// Sends the members to a new process, which may not know them.
    pub(super) fn tell_newcomer(&mut self, index: usize) {
        let group = self.group.as_ref().filter(|_| self.coordinates());
        if let Some(group) = group.filter(|_| self.open.is_some()) {
            let members = self.members_of(group.consensus.appended());
            self.send(index, &ControlFrame::Members(members));
        }
    }

    /// Sends the members' addresses to an agent that can search for coordinators.
    pub(super) fn tell_agent(&mut self, agent: ConnId) {
        let open = self.open.as_ref();
        if open.is_some_and(|open| open.agents.listens(agent)) {
            self.voters_event(agent, false);
        }
    }

    fn voters_event(&mut self, agent: ConnId, invites: bool) {
        let Some(open) = &self.open else { return };
        let (addresses, voters) = open.announced.clone();
        let event = Event::Voters(VoterList {
            addresses,
            voters,
            invites,
        });
        let send = coordinator::Output::Send(agent, event);
        self.outbox.push(Output::Coordinator(send));
    }

    /// Handles a list of members.
    ///
    /// Each member connects to all other members in the leader's list. A process outside a group
    /// sends the voters that it remembers.
    pub(super) fn on_members(
        &mut self,
        now: Now,
        from: ConnId,
        members: &[(Option<VoterId>, String)],
    ) {
        let Some(peer) = self.peers.at(from).filter(|_| self.open.is_some()) else {
            return;
        };
        let is_own = peer.group != 0 && peer.group == self.group_id();
        if is_own || self.group.is_none() {
            for (voter, address) in members.iter().filter(|(_, it)| !it.is_empty()) {
                let _ = self.call_at(address);
                if let Some(voter) = voter.filter(|_| is_own) {
                    self.peers.is_at(voter, address);
                }
            }
        }
        if is_own {
            self.write_note(None);
        } else if peer.group == 0 {
            let addresses = members.iter().map(|(_, address)| address.clone());
            self.peers.reports(from, addresses.collect());
            self.take_over_if_all_are_here(now);
        }
    }

    /// Handles a configuration that has entered the log or has come into force.
    pub(super) fn members_changed(&mut self, group: &Group) {
        if let Some(open) = &mut self.open {
            open.has_changed = true;
            if self.settings.rules.has(Rule::MembersAreRecorded) {
                self.write_note(Some(group));
            }
        }
    }

    /// Handles a request of an agent to the coordinator here.
    pub(super) fn agent_request(&mut self, now: Now, from: ConnId, code: u8, payload: &[u8]) {
        let Some(open) = &mut self.open else { return };
        match code {
            opcode::JOIN | opcode::REATTACH => open.agents.attached(now.mono, from),
            opcode::CANDIDATE => {
                if let Ok(Operation::Candidate { willing }) = Operation::read(code, payload) {
                    open.agents.candidate(now.mono, from, willing);
                    self.tell_agent(from);
                }
            }
            _ => {}
        }
    }

    pub(super) fn agent_closed(&mut self, agent: ConnId) {
        if let Some(open) = &mut self.open {
            open.agents.left(agent);
        }
    }

    /// Notifies the other voters of changed members, rounds or votes.
    pub(super) fn tell_changes(&mut self) {
        let votes = self.group.as_ref().is_some_and(|group| self.votes(group));
        let greeting = (self.rounds(), votes);
        let Some(open) = &mut self.open else { return };
        let has_changed = std::mem::take(&mut open.has_changed);
        let is_later = std::mem::replace(&mut open.greeted, greeting) != greeting;
        if has_changed {
            self.tell_members();
        }
        if is_later {
            self.greet();
        }
    }

    /// Invites agents to become voters, as many as the group may have.
    pub(super) fn invite_agents(&mut self, now: Now) {
        let has_round = self.has_round();
        let Some(coordinator) = self.coordinator.as_ref().filter(|_| has_round) else {
            return;
        };
        if self.ending.is_some() {
            return;
        }
        let present = self.peers.all_present().filter(|(_, peer)| !peer.leaves);
        let present = present.count();
        let most = self.most(now.mono);
        let Some(open) = &mut self.open else { return };
        let has_joined = |agent| coordinator.has_joined(agent);
        let chosen = open.agents.ask(now.mono, (1 + present, most), has_joined);
        self.tell_members();
        for agent in chosen {
            self.voters_event(agent, true);
        }
    }

    /// `true` if the group has room and an agent can still be invited.
    pub(super) fn awaits_agents(&self) -> bool {
        let Some(open) = self.open.as_ref().filter(|_| self.coordinates()) else {
            return false;
        };
        let present = self.peers.all_present().count();
        self.has_round() && present + 1 < open.most && open.agents.can_be_asked()
    }

    /// `true` if a round was announced in a run that is not over.
    fn has_round(&self) -> bool {
        let runs = self.group.iter().flat_map(|group| group.runs.values());
        let mut announced = runs.filter(|note| !note.closed && !note.members.is_empty());
        announced.next().is_some()
    }

    /// `true` if exactly the right members vote, in a group that agents may join.
    pub(super) fn is_open_settled(&self, group: &Group, now: Mono) -> bool {
        let configuration = group.consensus.configuration();
        let present = self.all_alive();
        let members = configuration.members();
        let learners = usize::from(present.len() == 2);
        members.iter().all(|member| present.contains(member))
            && configuration.voters.len() == target(present.len(), self.most(now))
            && configuration.learners.len() == learners
    }

    /// Maximum number of voters that the group may have.
    pub(super) fn most(&self, now: Mono) -> usize {
        let coordinator = self.coordinator.as_ref();
        let has_torchrun = coordinator.is_some_and(coordinator::Coordinator::has_torchrun);
        match &self.open {
            Some(open) if has_torchrun || open.agents.has_of_before(now) => 1,
            Some(open) => open.most,
            None => self.settings.endpoints.len(),
        }
    }

    /// Highest round plus 1 that the group of this process has announced.
    ///
    /// Without a group, the memory counts. 0 if no round is known.
    pub(super) fn rounds(&self) -> u32 {
        let remembered = self.open.as_ref().and_then(|open| open.memory.as_ref());
        match (&self.group, remembered) {
            (Some(group), _) => takeover::rounds(&group.runs),
            (None, Some(memory)) => memory.rounds(),
            (None, None) => 0,
        }
    }

    /// Position up to which this process has applied the log, or remembers it.
    pub(super) fn applied(&self) -> (u64, u64) {
        let remembered = self.open.as_ref().and_then(|open| open.memory.as_ref());
        match &self.group {
            Some(group) => takeover::applied(group),
            None => remembered.map_or((0, 0), |memory| memory.applied),
        }
    }

    /// Handles a peer that is in another group of this run, or remembers one.
    ///
    /// The group with the later round remains. Of two groups in one cluster, the later group
    /// remains. `theirs` is the highest round plus 1 that the peer knows, and `votes` is `true` if
    /// it votes.
    pub(super) fn meets(
        &mut self,
        now: Now,
        index: usize,
        group: GroupId,
        (theirs, votes): (u32, bool),
    ) {
        let other = self.endpoint(index);
        let (rounds, own) = (self.rounds(), self.group_id());
        if cluster_of(group) == cluster_of(own) {
            if group > own {
                self.leave_group(None);
            }
            return;
        }
        // This also applies to a peer inside a group: its voters may have ended. If they are alive,
        // they connect to this process too.
        if !votes {
            return self.meets_learner(now, theirs);
        }
        // A member that does not know the rounds yet leaves the decision to the others. Only
        // a coordinator without other members yields to a process outside a group.
        let decides = match group {
            0 => self.coordinates() && self.is_alone(),
            _ => self.coordinates() || rounds > 0,
        };
        if decides && (theirs, group) > (rounds, own) {
            let had_round = rounds > 0;
            self.outbox
                .push(Output::Log(Fact::Merged { other, had_round }));
            self.leave_group(None);
        }
    }

    /// Handles a peer that has only learned the rounds of another group.
    ///
    /// The voters of that group may have ended, and a learner does not continue the group. If the
    /// coordinator here is alone and knows no round, it restarts as one that follows a coordinator
    /// without a record. This way it uses no round number twice.
    fn meets_learner(&mut self, now: Now, theirs: u32) {
        let term = self.role().map_or(0, |role| role.term);
        let knows_none = self.coordinates() && self.is_alone() && self.rounds() == 0;
        let open = self.open.as_mut().filter(|open| !open.is_partial);
        if let Some(open) = open.filter(|_| knows_none && theirs > 0) {
            open.begin_partial();
            self.step_down(term);
            self.consent(now, consensus::Input::Confirm(term));
        }
    }

    /// `true` if this process is the only member of its group.
    pub(super) fn is_alone(&self) -> bool {
        let group = self.group.as_ref();
        group.is_some_and(|group| group.consensus.appended().members().len() == 1)
    }

    /// `true` if this process, which is in no group, may follow an invitation.
    pub(super) fn may_join(&self, (group, theirs): (GroupId, u32)) -> bool {
        let memory = self.open.as_ref().and_then(|open| open.memory.as_ref());
        memory.is_none_or(|memory| {
            if cluster_of(group) == memory.cluster {
                (group >> 64) >= GroupId::from(memory.applied.0)
            } else {
                !memory.votes || theirs > memory.rounds()
            }
        })
    }

    /// Resets the values that were sent, because this process now leads.
    pub(super) fn open_leads(&mut self, now: Now) {
        if let Some(open) = &mut self.open {
            (open.leads_since, open.has_changed) = (now.mono, true);
            open.announced = (Vec::new(), 0);
            open.announced_members.clear();
        }
    }

    /// Forgets the agents, because this process no longer leads.
    pub(super) fn open_leads_no_more(&mut self) {
        if let Some(open) = &mut self.open {
            open.agents = Agents::default();
        }
    }

    /// Returns how long a member has had no connection; `None` if it has one.
    ///
    /// The time begins when this process starts to lead, at the earliest.
    pub(super) fn gone_for(&self, now: Mono, member: VoterId) -> Option<Duration> {
        let open = self.open.as_ref()?;
        let since = self.peers.absent_since(member)?.max(open.leads_since);
        Some(now.since(since))
    }
}
