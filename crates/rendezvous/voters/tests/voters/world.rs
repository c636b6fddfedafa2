//! Simulated processes at endpoints, their connections, and agents.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::rules::Rules;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::coordinator::wire::{
    Authority, Event, HeldRound, Join, LastCoordinator, Operation, Program, Reattach,
};
use rdzv_rendezvous_proto::coordinator::{Input, Note, Origin, Output as CoordinatorOutput};
use rdzv_rendezvous_proto::group::VoterGroupView;
use rdzv_rendezvous_proto::{NodeDesc, Rule, Settings as RunSettings};
use rdzv_voters::{Fact, Open, Output, Settings, Start, Voter};

/// Time that a message takes.
const LATENCY: Duration = Duration::from_millis(1);

/// Time for which agents wait for a coordinator.
const SECONDS: Duration = Duration::from_secs(60);

/// Lowest connection number of agents; numbers of voters are lower.
const AGENTS: u32 = 1000;

/// A process at an endpoint.
struct Process {
    voter: Voter,
    greeting: Vec<u8>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    has_retired: bool,
    /// Index of the process that it connects to, for each of its endpoint indexes.
    calls: BTreeMap<usize, usize>,
}

/// A connection: indexes of the connecting and of the receiving process.
type Link = (usize, usize);

/// Deaths at a moment that the first of the processes reaches.
pub(crate) struct Doom {
    pub(crate) endpoints: Vec<usize>,
    pub(crate) moment: Moment,
    /// `true` if the last frames of the first process arrive.
    pub(crate) frames_arrive: bool,
    /// `true` if the machine of the first process is lost.
    pub(crate) loses_machine: bool,
}

/// Moment in the life of a process.
pub(crate) enum Moment {
    /// After this number of further outputs.
    Output(u32),
    /// After the process has announced a round; `true` once it has begun to.
    Announced(bool),
}

pub(crate) struct World {
    pub(crate) now: Now,
    endpoints: Vec<Option<Process>>,
    /// Open connections by their number.
    links: BTreeMap<Link, ConnId>,
    last_link: u32,
    /// Pairs of processes that cannot reach each other.
    cut: BTreeSet<Link>,
    in_flight: VecDeque<(Mono, Link, ConnId, Vec<u8>)>,
    /// Events for agents, with the index of the coordinator that sent them.
    events: BTreeMap<u32, Vec<(usize, Event)>>,
    /// Closed connections to report: one connection of a process, or all of them.
    closing: VecDeque<(usize, Option<ConnId>)>,
    /// Connections that a process no longer needs.
    abandoned: VecDeque<Link>,
    /// Connections of agents that a voter has closed.
    pub(crate) dismissed: BTreeSet<(usize, u32)>,
    pub(crate) facts: Vec<(usize, Fact)>,
    /// Index of the coordinator that announced each cluster and epoch.
    authorities: BTreeMap<(u64, u32), usize>,
    /// Last cluster and epoch that each coordinator announced.
    last_authority: BTreeMap<usize, (u64, u32)>,
    /// Members of every announced round, by cluster and number.
    pub(crate) announced: BTreeMap<(u64, u64), BTreeMap<u32, u32>>,
    seeds: u64,
    /// Indexes of the processes that have no agent.
    stores: BTreeSet<usize>,
    /// Maximum number of voters, if agents may join the group.
    open: Option<usize>,
    /// Records that processes have left.
    pub(crate) notes: BTreeMap<usize, Note>,
    /// Agents that will report to a coordinator whether they can be voters.
    attached: VecDeque<(usize, u32)>,
    /// Invited agents by index, with the members that they know.
    invited: Vec<(usize, Vec<String>)>,
    /// Agents that search for the coordinator only at the endpoint.
    pub(crate) of_before: BTreeSet<u32>,
    pub(crate) settings: RunSettings,
    rules: Rules<Rule>,
    /// Planned deaths.
    doom: Option<Doom>,
    /// Deaths that are due.
    dying: Option<Doom>,
    /// Indexes of the processes that a [`Doom`] killed.
    struck: Vec<usize>,
}

impl World {
    pub(crate) fn new(endpoints: usize, seed: u64) -> Self {
        let mut world = Self {
            now: Now {
                mono: Mono::ZERO,
                wall: Wall::from_unix_micros(1_700_000_000_000_000),
            },
            endpoints: Vec::new(),
            links: BTreeMap::new(),
            last_link: 0,
            cut: BTreeSet::new(),
            in_flight: VecDeque::new(),
            events: BTreeMap::new(),
            closing: VecDeque::new(),
            abandoned: VecDeque::new(),
            dismissed: BTreeSet::new(),
            facts: Vec::new(),
            authorities: BTreeMap::new(),
            last_authority: BTreeMap::new(),
            announced: BTreeMap::new(),
            seeds: seed.wrapping_mul(1 << 20),
            stores: BTreeSet::new(),
            open: None,
            notes: BTreeMap::new(),
            attached: VecDeque::new(),
            invited: Vec::new(),
            of_before: BTreeSet::new(),
            settings: RunSettings::new(2, 2),
            rules: Rules::default(),
            doom: None,
            struck: Vec::new(),
            dying: None,
        };
        world.endpoints.resize_with(endpoints, || None);
        world
    }

    /// Starts all processes and waits until they have a coordinator.
    pub(crate) fn founded(endpoints: usize) -> Self {
        let mut world = Self::new(endpoints, 1);
        (0..endpoints).for_each(|index| world.start(index));
        world.pass(Duration::from_secs(1));
        assert!(world.coordinator().is_some());
        world
    }

    /// Creates a group that agents may join, with at most `most` voters.
    ///
    /// The process at the first endpoint founds it.
    pub(crate) fn open(endpoints: usize, most: usize, seed: u64) -> Self {
        Self::open_with(endpoints, most, seed, Rules::default())
    }

    /// Creates the same group with voters that keep these rules.
    pub(crate) fn open_with(endpoints: usize, most: usize, seed: u64, rules: Rules<Rule>) -> Self {
        let mut world = Self::new(endpoints, seed);
        world.rules = rules;
        world.open = Some(most);
        world.start(0);
        world
    }

    pub(crate) fn endpoint(index: usize) -> String {
        format!("n{index}:29400")
    }

    /// Starts a process that is only a voter.
    pub(crate) fn start_store(&mut self, index: usize) {
        self.stores.insert(index);
        self.start(index);
    }

    /// Starts a new process at an endpoint.
    pub(crate) fn start(&mut self, index: usize) {
        if self.open.is_some() {
            return self.start_open(index, Vec::new());
        }
        let endpoints = (0..self.endpoints.len()).map(Self::endpoint).collect();
        self.start_with(index, endpoints);
    }

    /// Starts a new process with another list of endpoints.
    pub(crate) fn start_with(&mut self, index: usize, endpoints: Vec<String>) {
        self.start_voter(index, endpoints, None);
    }

    /// Starts a process of a group that agents may join, like a driver does.
    ///
    /// The process gets the record of its predecessor, or the members that its agent knows.
    fn start_open(&mut self, index: usize, members: Vec<String>) {
        let note = self.notes.get(&index).cloned();
        let members = match &note {
            Some(note) => note.voters.clone(),
            None => members,
        };
        let note = note.or_else(|| (index == 0).then(|| Note::new(self.seeds, SECONDS)));
        let start = match note.map(Box::new) {
            None => Start::Invited,
            Some(note) if !note.voters.is_empty() => Start::Returns { note },
            Some(mut note) => {
                note.authority.epoch += 1;
                let origin = Origin {
                    addresses: [Self::endpoint(index)].into(),
                    rules: self.rules,
                    ..Origin::default()
                };
                Start::Alone { note, origin }
            }
        };
        let mut endpoints = vec![Self::endpoint(0)];
        for member in members.into_iter().chain([Self::endpoint(index)]) {
            if !endpoints.contains(&member) && !member.is_empty() {
                endpoints.push(member);
            }
        }
        let open = Open {
            run: "run".to_owned(),
            most: self.open.unwrap(),
            start,
        };
        self.start_voter(index, endpoints, Some(open));
    }

    fn start_voter(&mut self, index: usize, endpoints: Vec<String>, open: Option<Open>) {
        self.seeds += 1;
        let own = endpoints.iter().position(|of| *of == Self::endpoint(index));
        let own = own.unwrap();
        let calls = endpoints.iter().enumerate().filter(|(at, _)| *at != own);
        let calls = calls.map(|(at, index)| (at, Self::index_of(index)));
        let calls = calls.collect();
        let voter = Voter::new(Settings {
            endpoints,
            open,
            own,
            is_store: self.stores.contains(&index),
            // The instance of the agent is its index plus 1.
            agent: (!self.stores.contains(&index)).then_some(index as u64 + 1),
            seed: self.seeds,
            timeout: SECONDS,
            node_timeout: Duration::from_secs(3),
            rules: self.rules,
        });
        self.endpoints[index] = Some(Process {
            voter,
            greeting: Vec::new(),
            keys: BTreeMap::new(),
            has_retired: false,
            calls,
        });
        self.drain(index);
        if self.open.is_some() {
            self.handle(index, Input::Tick);
        }
    }

    /// Restarts the agent at an endpoint.
    ///
    /// Its voter restarts too, if the agent had one, or if it is at the job's endpoint.
    pub(crate) fn start_agent(&mut self, index: usize) {
        if index == 0 || self.notes.contains_key(&index) {
            self.start(index);
        }
    }

    /// Returns the logged lines and the records of the processes.
    pub(crate) fn story(&self) -> String {
        let facts = self
            .facts
            .iter()
            .map(|(index, fact)| format!("n{index}: {fact}"));
        let facts: Vec<String> = facts.collect();
        let notes = self.notes.iter().map(|(index, note)| {
            let Authority { cluster, epoch, .. } = note.authority;
            let (cluster, rounds) = (cluster % 1000, note.runs.get("run").map(|run| run.round));
            format!(
                "n{index}: {cluster} {epoch} {rounds:?}, beside {:?}",
                note.voters
            )
        });
        format!(
            "{}\n{}",
            facts.join("\n"),
            notes.collect::<Vec<_>>().join("\n")
        )
    }

    fn index_of(endpoint: &str) -> usize {
        let number = endpoint.trim_start_matches('n').split(':').next();
        number.unwrap().parse().unwrap()
    }

    /// Loses a machine with its process, its record and its agent.
    pub(crate) fn lose(&mut self, index: usize) {
        self.kill_with_agent(index);
        self.notes.remove(&index);
    }

    /// Kills the process at an endpoint and the agent in it.
    pub(crate) fn kill_with_agent(&mut self, index: usize) {
        self.kill(index);
        self.invited.retain(|(invited, _)| *invited != index);
        (self.attached).retain(|(_, agent)| *agent as usize != index);
        for coordinator in self.coordinators() {
            let agent = ConnId(AGENTS + index as u32);
            self.handle(coordinator, Input::Closed(agent));
        }
    }

    /// Tells the process at an endpoint that it is about to end.
    pub(crate) fn end(&mut self, index: usize) {
        self.handle(index, Input::Ending);
    }

    /// Returns the group as the process at an endpoint sees it.
    pub(crate) fn view(&self, index: usize) -> VoterGroupView {
        let process = self.endpoints[index].as_ref();
        process.unwrap().voter.view(self.now)
    }

    /// `true` if the process at an endpoint waits for a successor.
    pub(crate) fn hands_over(&self, index: usize) -> bool {
        let process = self.endpoints[index].as_ref();
        process.is_some_and(|process| process.voter.hands_over())
    }

    /// Kills the process at an endpoint.
    pub(crate) fn kill(&mut self, index: usize) {
        self.endpoints[index] = None;
        self.hang_up(|link| link.0 == index || link.1 == index);
    }

    /// Plans the death of some processes with their agents.
    ///
    /// All of them die when the first one reaches a moment.
    pub(crate) fn doom(&mut self, doom: Doom) {
        let is_there = doom
            .endpoints
            .first()
            .is_some_and(|at| self.endpoints[*at].is_some());
        self.doom = Some(doom).filter(|_| is_there);
    }

    /// Cancels the planned deaths.
    pub(crate) fn spare(&mut self) {
        self.doom = None;
    }

    /// Removes and returns the indexes of the processes that died as planned.
    pub(crate) fn struck(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.struck)
    }

    /// `true` if the process dies before this output, or after its last one.
    fn is_struck(&mut self, index: usize, output: Option<&Output>) -> bool {
        let doom = self.doom.as_mut().filter(|doom| doom.endpoints[0] == index);
        let Some(doom) = doom else { return false };
        let has_announced = matches!(
            output,
            Some(Output::Coordinator(CoordinatorOutput::Send(
                _,
                Event::Formed { .. }
            )))
        );
        match &mut doom.moment {
            Moment::Output(0) => true,
            Moment::Output(left) => {
                *left -= u32::from(output.is_some());
                false
            }
            Moment::Announced(announced) => {
                let was_last = *announced && !has_announced;
                *announced |= has_announced;
                was_last
            }
        }
    }

    fn strike(&mut self, doom: &Doom) {
        let Some(first) = doom.endpoints.first() else {
            return;
        };
        let in_flight = std::mem::take(&mut self.in_flight);
        let (sent, others): (Vec<_>, Vec<_>) = in_flight
            .into_iter()
            .partition(|(_, link, ..)| link.0 == *first);
        self.in_flight = others.into();
        for index in &doom.endpoints {
            self.endpoints[*index] = None;
            self.struck.push(*index);
        }
        for (_, link, from, frame) in sent.into_iter().filter(|_| doom.frames_arrive) {
            self.arrive(link, from, &frame);
        }
        for index in &doom.endpoints {
            if doom.loses_machine && index == first {
                self.lose(*index);
            } else {
                self.kill_with_agent(*index);
            }
        }
    }

    /// Cuts these processes off from the others; no process is notified.
    pub(crate) fn cut_off(&mut self, endpoints: &[usize]) {
        for from in 0..self.endpoints.len() {
            for to in 0..self.endpoints.len() {
                if endpoints.contains(&from) != endpoints.contains(&to) {
                    self.cut.insert((from, to));
                }
            }
        }
    }

    pub(crate) fn heal(&mut self) {
        let cut = std::mem::take(&mut self.cut);
        // The lost messages have broken the connections.
        self.hang_up(|link| cut.contains(&link));
    }

    /// Closes connections, and notifies the receiving processes that live.
    fn hang_up(&mut self, which: impl Fn(Link) -> bool) {
        let ended: Vec<(Link, ConnId)> = (self.links.iter())
            .filter(|(link, _)| which(**link))
            .map(|(link, id)| (*link, *id))
            .collect();
        for (link, id) in ended {
            self.links.remove(&link);
            self.in_flight.retain(|(_, _, of, _)| *of != id);
            self.handle(link.1, Input::Closed(id));
        }
    }

    fn handle(&mut self, index: usize, input: Input<'_>) {
        let now = self.now;
        if let Some(process) = &mut self.endpoints[index] {
            process.voter.handle(now, input);
            self.drain(index);
        }
        if let Some(doom) = self.dying.take() {
            self.strike(&doom);
        }
        while let Some(abandoned) = self.abandoned.pop_front() {
            self.hang_up(|link| link == abandoned);
        }
        while let Some((index, id)) = self.closing.pop_front() {
            match id {
                Some(id) if id.0 >= AGENTS => {
                    self.dismissed.insert((index, id.0 - AGENTS));
                    self.handle(index, Input::Closed(id));
                }
                Some(id) => {
                    let links = self.links.clone();
                    self.hang_up(|link| links.get(&link) == Some(&id));
                }
                None => self.hang_up(|link| link.0 == index),
            }
        }
    }

    fn drain(&mut self, index: usize) {
        loop {
            let Some(process) = &mut self.endpoints[index] else {
                return;
            };
            let output = process.voter.poll_output();
            if self.is_struck(index, output.as_ref()) {
                (self.endpoints[index], self.dying) = (None, self.doom.take());
                return;
            }
            let (Some(output), Some(process)) = (output, &mut self.endpoints[index]) else {
                return;
            };
            match output {
                Output::Coordinator(output) => self.of_coordinator(index, output),
                Output::ToPeer { index: at, frame } => {
                    if let Some(to) = process.calls.get(&at).copied() {
                        self.send((index, to), frame);
                    }
                }
                Output::Call { index: at, address } => {
                    let old = process.calls.remove(&at);
                    if let Some(address) = address {
                        process.calls.insert(at, Self::index_of(&address));
                    }
                    let calls: BTreeSet<usize> = process.calls.values().copied().collect();
                    if let Some(old) = old.filter(|old| !calls.contains(old)) {
                        self.abandoned.push_back((index, old));
                    }
                }
                Output::Note(note) => drop(self.notes.insert(index, *note)),
                Output::Greet(frame) => {
                    process.greeting.clone_from(&frame);
                    let links: Vec<Link> = self.links.keys().copied().collect();
                    for link in links.into_iter().filter(|link| link.0 == index) {
                        self.send(link, frame.clone());
                    }
                }
                Output::Reply(..) => {}
                Output::Dismiss(id, _) => self.closing.push_back((index, Some(id))),
                Output::SteppedDown => process.keys.clear(),
                Output::Retire => {
                    process.has_retired = true;
                    self.closing.push_back((index, None));
                }
                Output::Log(fact) => self.facts.push((index, fact)),
            }
        }
    }

    fn of_coordinator(&mut self, index: usize, output: CoordinatorOutput) {
        let process = self.endpoints[index].as_mut().unwrap();
        match output {
            // The kernel of the agent acknowledges this event.
            CoordinatorOutput::Send(_, Event::Alive(None)) => {}
            CoordinatorOutput::Send(id, event) => {
                let agent = id.0 - AGENTS;
                self.check(index, agent, &event);
                if let Event::Attached(authority) = &event
                    && authority.takes_voters
                {
                    self.attached.push_back((index, agent));
                }
                if let Event::Voters(list) = &event
                    && list.invites
                {
                    self.invited.push((agent as usize, list.addresses.clone()));
                }
                self.events.entry(agent).or_default().push((index, event));
            }
            CoordinatorOutput::Read(key) => {
                let value = process.keys.get(&key).cloned();
                let value = value.as_deref();
                process
                    .voter
                    .handle(self.now, Input::Found { key: &key, value });
            }
            CoordinatorOutput::Store { key, value } => drop(process.keys.insert(key, value)),
            CoordinatorOutput::Remove(key) => drop(process.keys.remove(&key)),
            CoordinatorOutput::Close(id, _) => self.closing.push_back((index, Some(id))),
            CoordinatorOutput::Note { .. }
            | CoordinatorOutput::Adopt(_)
            | CoordinatorOutput::Confirm(_) => {
                panic!("a record has left the voter")
            }
            CoordinatorOutput::LastCall { .. }
            | CoordinatorOutput::LastSpare { .. }
            | CoordinatorOutput::Recovering { .. } => {}
        }
    }

    /// Checks the invariants of terms and rounds.
    ///
    /// A term of a group has one coordinator, and a round has one set of members.
    fn check(&mut self, index: usize, agent: u32, event: &Event) {
        match event {
            Event::Attached(Authority { cluster, epoch, .. }) => {
                self.last_authority.insert(index, (*cluster, *epoch));
                let first = *(self.authorities.entry((*cluster, *epoch))).or_insert(index);
                let (seeds, story) = (self.seeds >> 20, self.story());
                assert_eq!(
                    first, index,
                    "seed {seeds}, two have epoch {epoch}: {story}"
                );
            }
            Event::Formed { round, rank, .. } => {
                let cluster = self.authority(index).0;
                let ranks = self.announced.entry((cluster, *round)).or_default();
                let other = ranks.insert(*rank, agent);
                let (seeds, story) = (self.seeds >> 20, self.story());
                assert!(
                    other.is_none_or(|other| other == agent),
                    "seed {seeds}: agents {other:?} and {agent} have rank {rank} of round {round}: {story}"
                );
            }
            _ => {}
        }
    }

    /// Returns the last cluster and epoch that the coordinator announced.
    pub(crate) fn authority(&self, index: usize) -> (u64, u32) {
        self.last_authority[&index]
    }

    fn send(&mut self, link: Link, frame: Vec<u8>) {
        if let Some(id) = self.links.get(&link)
            && !self.cut.contains(&link)
        {
            let at = self.now.mono + LATENCY;
            let mut rest = &frame[..];
            while let Some((head, _)) = rest.split_first_chunk::<9>() {
                let length = 9 + u64::from_le_bytes(head[1..].try_into().unwrap()) as usize;
                let frame = rest[..length].to_vec();
                self.in_flight.push_back((at, link, *id, frame));
                rest = &rest[length..];
            }
        }
    }

    /// Connects processes that are not connected yet.
    fn connect(&mut self) {
        let can = |process: &Option<Process>| process.as_ref().is_some_and(|it| !it.has_retired);
        for from in 0..self.endpoints.len() {
            for to in 0..self.endpoints.len() {
                let link = (from, to);
                let process = self.endpoints[from].as_ref();
                let calls = process.is_some_and(|it| it.calls.values().any(|called| *called == to));
                let is_there = self.links.contains_key(&link) || self.cut.contains(&link) || !calls;
                if from == to
                    || is_there
                    || !can(&self.endpoints[from])
                    || !can(&self.endpoints[to])
                {
                    continue;
                }
                self.last_link += 1;
                assert!(self.last_link < AGENTS);
                self.links.insert(link, ConnId(self.last_link));
                let greeting = self.endpoints[from].as_ref().unwrap().greeting.clone();
                self.send(link, greeting);
            }
        }
    }

    /// Delivers a frame to its receiver.
    fn arrive(&mut self, link: Link, from: ConnId, frame: &[u8]) {
        if self.links.get(&link) == Some(&from) && !self.cut.contains(&link) {
            let (opcode, payload) = (frame[0], &frame[9..]);
            let request = Input::Request {
                from,
                opcode,
                payload,
            };
            self.handle(link.1, request);
        }
    }

    /// Lets time pass, in steps of a millisecond.
    pub(crate) fn pass(&mut self, time: Duration) {
        let deadline = self.now.mono + time;
        while self.now.mono < deadline {
            self.connect();
            let step = Duration::from_millis(1);
            self.now = Now {
                mono: self.now.mono + step,
                wall: self.now.wall + step,
            };
            while let Some((at, ..)) = self.in_flight.front()
                && *at <= self.now.mono
                && let Some((_, link, from, frame)) = self.in_flight.pop_front()
            {
                self.arrive(link, from, &frame);
            }
            while let Some((index, agent)) = self.attached.pop_front() {
                if !self.of_before.contains(&agent) {
                    let is_voter = self
                        .endpoints
                        .get(agent as usize)
                        .is_some_and(Option::is_some);
                    let willing = !is_voter && (agent as usize) < self.endpoints.len();
                    self.ask(index, agent, &Operation::Candidate { willing });
                }
            }
            for (index, members) in std::mem::take(&mut self.invited) {
                if self.endpoints[index].is_none() {
                    self.start_open(index, members);
                }
            }
            for index in 0..self.endpoints.len() {
                let process = self.endpoints[index].as_ref();
                let due = process.and_then(|process| process.voter.deadline());
                if due.is_some_and(|due| due <= self.now.mono) {
                    self.handle(index, Input::Tick);
                }
            }
        }
    }

    /// Returns the indexes of the processes that run a coordinator.
    pub(crate) fn coordinators(&self) -> Vec<usize> {
        let endpoints = self.endpoints.iter().enumerate();
        let coordinates =
            |process: &Option<Process>| process.as_ref().is_some_and(|it| it.voter.coordinates());
        let found = endpoints.filter(|(_, process)| coordinates(process));
        found.map(|(index, _)| index).collect()
    }

    /// Returns the index of the coordinator, if there is one.
    pub(crate) fn coordinator(&self) -> Option<usize> {
        match self.coordinators()[..] {
            [index] => Some(index),
            _ => None,
        }
    }

    /// Returns the endpoint of the coordinator, as a voter reports it.
    pub(crate) fn named_by(&self, index: usize) -> Option<String> {
        let process = self.endpoints[index].as_ref()?;
        process.voter.coordinator().map(str::to_owned)
    }

    /// Sends an agent's request to the voter at an endpoint.
    pub(crate) fn ask(&mut self, index: usize, agent: u32, operation: &Operation) {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        self.dismissed.remove(&(index, agent));
        let request = Input::Request {
            from: ConnId(AGENTS + agent),
            opcode: bytes[0],
            payload: &bytes[9..],
        };
        self.handle(index, request);
    }

    pub(crate) fn join_of(&self, agent: u32, attempt: u32) -> Join {
        Join {
            instance: u64::from(agent) + 1,
            run: "run".to_owned(),
            node: NodeDesc::new(format!("agent{agent}"), 1),
            settings: self.settings,
            role: "default".to_owned(),
            local_world_size: 1,
            program: Some(Program::new("train.py", b"", true)),
            attempt,
            replaces: Vec::new(),
            lost: Vec::new(),
            from: None,
        }
    }

    pub(crate) fn join(&mut self, index: usize, agent: u32, attempt: u32) {
        let join = self.join_of(agent, attempt);
        self.ask(index, agent, &Operation::Join(Box::new(join)));
    }

    /// Reattaches an agent that followed the coordinator of `last`.
    ///
    /// The agent continues at another coordinator, with the round that it holds, if any.
    pub(crate) fn reattach(
        &mut self,
        index: usize,
        agent: u32,
        (cluster, epoch): (u64, u32),
        holds: Option<HeldRound>,
    ) {
        let address = match self.open {
            // The first coordinator was at the first endpoint.
            Some(_) => Self::endpoint(0),
            None => String::new(),
        };
        let reattach = Reattach {
            last: LastCoordinator {
                cluster,
                epoch,
                address,
            },
            join: self.join_of(agent, 1),
            holds,
            left: None,
            leaves: false,
        };
        self.ask(index, agent, &Operation::Reattach(Box::new(reattach)));
    }

    /// Removes and returns the events that an agent has received.
    pub(crate) fn take(&mut self, agent: u32) -> Vec<Event> {
        let events = self.events.remove(&agent).unwrap_or_default();
        events.into_iter().map(|(_, event)| event).collect()
    }
}
