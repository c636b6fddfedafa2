//! Processes at places, their connections, and agents.

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
use rdzv_rendezvous_proto::group::GroupView;
use rdzv_rendezvous_proto::{NodeDesc, Rule, Settings as RunSettings};
use rdzv_voters::{Fact, Open, Output, Settings, Start, Voter};

/// The time that a message takes.
const LATENCY: Duration = Duration::from_millis(1);

/// The time for which agents wait for a coordinator.
const SECONDS: Duration = Duration::from_secs(60);

/// Connections of agents have the numbers from here on; those of voters are below.
const AGENTS: u32 = 1000;

/// A process at a place.
struct Process {
    voter: Voter,
    greeting: Vec<u8>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    has_retired: bool,
    /// The number of the process at each of its places that it calls.
    calls: BTreeMap<usize, usize>,
}

/// A connection from one place to another, as a number of the receiver.
type Link = (usize, usize);

/// Deaths at a moment that the first of the processes reaches.
pub(crate) struct Doom {
    pub(crate) places: Vec<usize>,
    pub(crate) moment: Moment,
    /// The last frames of the first one arrive.
    pub(crate) frames_arrive: bool,
    /// The first one's machine is gone.
    pub(crate) loses_machine: bool,
}

/// A moment in the life of a process.
pub(crate) enum Moment {
    /// It has made so many outputs.
    Output(u32),
    /// It has told the participants of a round; whether it has begun to.
    Announced(bool),
}

pub(crate) struct World {
    pub(crate) now: Now,
    places: Vec<Option<Process>>,
    /// The connections that are there, by their number.
    links: BTreeMap<Link, ConnId>,
    last_link: u32,
    /// Pairs of places that cannot reach one another.
    cut: BTreeSet<Link>,
    in_flight: VecDeque<(Mono, Link, ConnId, Vec<u8>)>,
    /// Events for agents, with the place of the coordinator that has sent them.
    events: BTreeMap<u32, Vec<(usize, Event)>>,
    /// Ends that processes make: of a connection to it, or all of its own to others.
    closing: VecDeque<(usize, Option<ConnId>)>,
    /// Connections that a process needs no more.
    abandoned: VecDeque<Link>,
    /// Connections of agents that a voter has closed.
    pub(crate) dismissed: BTreeSet<(usize, u32)>,
    pub(crate) facts: Vec<(usize, Fact)>,
    /// The epochs with which coordinators have said who they are, by cluster, and their places.
    authorities: BTreeMap<(u64, u32), usize>,
    /// The last of them at each place.
    last_authority: BTreeMap<usize, (u64, u32)>,
    /// The members of every round that was announced, by cluster and number.
    pub(crate) announced: BTreeMap<(u64, u64), BTreeMap<u32, u32>>,
    seeds: u64,
    /// The places at which no agent runs.
    stores: BTreeSet<usize>,
    /// The most voters, if agents may join the group.
    open: Option<usize>,
    /// The notes that processes have left.
    pub(crate) notes: BTreeMap<usize, Note>,
    /// Agents that are to say whether they can be voters, and to whom.
    attached: VecDeque<(usize, u32)>,
    /// Agents that were asked to be voters, each at the place of its number, and the members that they know.
    invited: Vec<(usize, Vec<String>)>,
    /// Agents that do not look for the coordinator elsewhere.
    pub(crate) of_before: BTreeSet<u32>,
    pub(crate) settings: RunSettings,
    rules: Rules<Rule>,
    /// Deaths to come.
    doom: Option<Doom>,
    /// Deaths that are due.
    dying: Option<Doom>,
    /// The places at which processes were killed in that way.
    struck: Vec<usize>,
}

impl World {
    pub(crate) fn new(places: usize, seed: u64) -> Self {
        let mut world = Self {
            now: Now {
                mono: Mono::ZERO,
                wall: Wall::from_unix_micros(1_700_000_000_000_000),
            },
            places: Vec::new(),
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
        world.places.resize_with(places, || None);
        world
    }

    /// All processes are started, and have a coordinator.
    pub(crate) fn founded(places: usize) -> Self {
        let mut world = Self::new(places, 1);
        (0..places).for_each(|place| world.start(place));
        world.pass(Duration::from_secs(1));
        assert!(world.coordinator().is_some());
        world
    }

    /// Agents may join the group, so that it has so many voters at most. The process at the first place founds it.
    pub(crate) fn open(places: usize, most: usize, seed: u64) -> Self {
        Self::open_with(places, most, seed, Rules::default())
    }

    /// The same with the rules that the voters keep.
    pub(crate) fn open_with(places: usize, most: usize, seed: u64, rules: Rules<Rule>) -> Self {
        let mut world = Self::new(places, seed);
        world.rules = rules;
        world.open = Some(most);
        world.start(0);
        world
    }

    pub(crate) fn endpoint(place: usize) -> String {
        format!("n{place}:29400")
    }

    /// The process at a place is only a voter.
    pub(crate) fn start_store(&mut self, place: usize) {
        self.stores.insert(place);
        self.start(place);
    }

    /// A new process is started at a place.
    pub(crate) fn start(&mut self, place: usize) {
        if self.open.is_some() {
            return self.start_open(place, Vec::new());
        }
        let places = (0..self.places.len()).map(Self::endpoint).collect();
        self.start_with(place, places);
    }

    /// The same with a list of its own.
    pub(crate) fn start_with(&mut self, place: usize, places: Vec<String>) {
        self.start_voter(place, places, None);
    }

    /// A process of a group that agents may join is started at a place, as a driver does it: with the note of the one
    /// before, or with the members that the agent there knows.
    fn start_open(&mut self, place: usize, members: Vec<String>) {
        let note = self.notes.get(&place).cloned();
        let members = match &note {
            Some(note) => note.voters.clone(),
            None => members,
        };
        let note = note.or_else(|| (place == 0).then(|| Note::new(self.seeds, SECONDS)));
        let start = match note.map(Box::new) {
            None => Start::Invited,
            Some(note) if !note.voters.is_empty() => Start::Returns { note },
            Some(mut note) => {
                note.authority.epoch += 1;
                let origin = Origin {
                    addresses: [Self::endpoint(place)].into(),
                    rules: self.rules,
                    ..Origin::default()
                };
                Start::Alone { note, origin }
            }
        };
        let mut places = vec![Self::endpoint(0)];
        for member in members.into_iter().chain([Self::endpoint(place)]) {
            if !places.contains(&member) && !member.is_empty() {
                places.push(member);
            }
        }
        let open = Open {
            run: "run".to_owned(),
            most: self.open.unwrap(),
            start,
        };
        self.start_voter(place, places, Some(open));
    }

    fn start_voter(&mut self, place: usize, places: Vec<String>, open: Option<Open>) {
        self.seeds += 1;
        let own = places.iter().position(|of| *of == Self::endpoint(place));
        let own = own.unwrap();
        let calls = places.iter().enumerate().filter(|(at, _)| *at != own);
        let calls = calls.map(|(at, place)| (at, Self::place_of(place)));
        let calls = calls.collect();
        let voter = Voter::new(Settings {
            places,
            open,
            own,
            is_store: self.stores.contains(&place),
            // The instance of the agent with the number of the place.
            agent: (!self.stores.contains(&place)).then_some(place as u64 + 1),
            seed: self.seeds,
            timeout: SECONDS,
            node_timeout: Duration::from_secs(3),
            rules: self.rules,
        });
        self.places[place] = Some(Process {
            voter,
            greeting: Vec::new(),
            keys: BTreeMap::new(),
            has_retired: false,
            calls,
        });
        self.drain(place);
        if self.open.is_some() {
            self.handle(place, Input::Tick);
        }
    }

    /// The agent at a place is started again. Its voter is as well, if it was one, or if that is the endpoint.
    pub(crate) fn start_agent(&mut self, place: usize) {
        if place == 0 || self.notes.contains_key(&place) {
            self.start(place);
        }
    }

    /// The lines that people saw, and the notes of the processes.
    pub(crate) fn story(&self) -> String {
        let facts = self
            .facts
            .iter()
            .map(|(place, fact)| format!("n{place}: {fact}"));
        let facts: Vec<String> = facts.collect();
        let notes = self.notes.iter().map(|(place, note)| {
            let Authority { cluster, epoch, .. } = note.authority;
            let (cluster, rounds) = (cluster % 1000, note.runs.get("run").map(|run| run.round));
            format!(
                "n{place}: {cluster} {epoch} {rounds:?}, beside {:?}",
                note.voters
            )
        });
        format!(
            "{}\n{}",
            facts.join("\n"),
            notes.collect::<Vec<_>>().join("\n")
        )
    }

    fn place_of(endpoint: &str) -> usize {
        let number = endpoint.trim_start_matches('n').split(':').next();
        number.unwrap().parse().unwrap()
    }

    /// The machine of a place is gone, with the note of its process and the agent there.
    pub(crate) fn lose(&mut self, place: usize) {
        self.kill_with_agent(place);
        self.notes.remove(&place);
    }

    /// The process at a place is killed, and the agent in it.
    pub(crate) fn kill_with_agent(&mut self, place: usize) {
        self.kill(place);
        self.invited.retain(|(invited, _)| *invited != place);
        (self.attached).retain(|(_, agent)| *agent as usize != place);
        for coordinator in self.coordinators() {
            let agent = ConnId(AGENTS + place as u32);
            self.handle(coordinator, Input::Closed(agent));
        }
    }

    /// The process at a place is about to end, by its own decision.
    pub(crate) fn end(&mut self, place: usize) {
        self.handle(place, Input::Ending);
    }

    /// The group as the process at a place sees it.
    pub(crate) fn view(&self, place: usize) -> GroupView {
        let process = self.places[place].as_ref();
        process.unwrap().voter.view(self.now)
    }

    /// Whether the process at a place waits for a successor.
    pub(crate) fn hands_over(&self, place: usize) -> bool {
        let process = self.places[place].as_ref();
        process.is_some_and(|process| process.voter.hands_over())
    }

    /// The process at a place is killed.
    pub(crate) fn kill(&mut self, place: usize) {
        self.places[place] = None;
        self.hang_up(|link| link.0 == place || link.1 == place);
    }

    /// The processes of some places are killed at once, with their agents, as soon as the first one reaches a moment.
    pub(crate) fn doom(&mut self, doom: Doom) {
        let is_there = doom
            .places
            .first()
            .is_some_and(|at| self.places[*at].is_some());
        self.doom = Some(doom).filter(|_| is_there);
    }

    /// None is killed in that way from here on.
    pub(crate) fn spare(&mut self) {
        self.doom = None;
    }

    /// The places of those that were.
    pub(crate) fn struck(&mut self) -> Vec<usize> {
        std::mem::take(&mut self.struck)
    }

    /// Whether the process at a place is killed before this output, or when it has no more.
    fn is_struck(&mut self, place: usize, output: Option<&Output>) -> bool {
        let doom = self.doom.as_mut().filter(|doom| doom.places[0] == place);
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
        let Some(first) = doom.places.first() else {
            return;
        };
        let in_flight = std::mem::take(&mut self.in_flight);
        let (sent, others): (Vec<_>, Vec<_>) = in_flight
            .into_iter()
            .partition(|(_, link, ..)| link.0 == *first);
        self.in_flight = others.into();
        for place in &doom.places {
            self.places[*place] = None;
            self.struck.push(*place);
        }
        for (_, link, from, frame) in sent.into_iter().filter(|_| doom.frames_arrive) {
            self.arrive(link, from, &frame);
        }
        for place in &doom.places {
            match doom.loses_machine && place == first {
                true => self.lose(*place),
                false => self.kill_with_agent(*place),
            }
        }
    }

    /// The processes of these places cannot reach the others, and nobody is told of that.
    pub(crate) fn cut_off(&mut self, places: &[usize]) {
        for from in 0..self.places.len() {
            for to in 0..self.places.len() {
                if places.contains(&from) != places.contains(&to) {
                    self.cut.insert((from, to));
                }
            }
        }
    }

    pub(crate) fn heal(&mut self) {
        let cut = std::mem::take(&mut self.cut);
        // What was lost meanwhile has broken the connections.
        self.hang_up(|link| cut.contains(&link));
    }

    /// Ends connections. Both sides hear of it, if they live.
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

    fn handle(&mut self, place: usize, input: Input<'_>) {
        let now = self.now;
        if let Some(process) = &mut self.places[place] {
            process.voter.handle(now, input);
            self.drain(place);
        }
        if let Some(doom) = self.dying.take() {
            self.strike(&doom);
        }
        while let Some(abandoned) = self.abandoned.pop_front() {
            self.hang_up(|link| link == abandoned);
        }
        while let Some((place, id)) = self.closing.pop_front() {
            match id {
                Some(id) if id.0 >= AGENTS => {
                    self.dismissed.insert((place, id.0 - AGENTS));
                    self.handle(place, Input::Closed(id));
                }
                Some(id) => {
                    let links = self.links.clone();
                    self.hang_up(|link| links.get(&link) == Some(&id));
                }
                None => self.hang_up(|link| link.0 == place),
            }
        }
    }

    fn drain(&mut self, place: usize) {
        loop {
            let Some(process) = &mut self.places[place] else {
                return;
            };
            let output = process.voter.poll_output();
            if self.is_struck(place, output.as_ref()) {
                (self.places[place], self.dying) = (None, self.doom.take());
                return;
            }
            let (Some(output), Some(process)) = (output, &mut self.places[place]) else {
                return;
            };
            match output {
                Output::Coordinator(output) => self.of_coordinator(place, output),
                Output::ToPeer { place: at, frame } => {
                    if let Some(to) = process.calls.get(&at).copied() {
                        self.send((place, to), frame);
                    }
                }
                Output::Call { place: at, address } => {
                    let old = process.calls.remove(&at);
                    if let Some(address) = address {
                        process.calls.insert(at, Self::place_of(&address));
                    }
                    let calls: BTreeSet<usize> = process.calls.values().copied().collect();
                    if let Some(old) = old.filter(|old| !calls.contains(old)) {
                        self.abandoned.push_back((place, old));
                    }
                }
                Output::Note(note) => drop(self.notes.insert(place, *note)),
                Output::Greet(frame) => {
                    process.greeting.clone_from(&frame);
                    let links: Vec<Link> = self.links.keys().copied().collect();
                    for link in links.into_iter().filter(|link| link.0 == place) {
                        self.send(link, frame.clone());
                    }
                }
                Output::Reply(..) => {}
                Output::Dismiss(id, _) => self.closing.push_back((place, Some(id))),
                Output::SteppedDown => process.keys.clear(),
                Output::Retire => {
                    process.has_retired = true;
                    self.closing.push_back((place, None));
                }
                Output::Log(fact) => self.facts.push((place, fact)),
            }
        }
    }

    fn of_coordinator(&mut self, place: usize, output: CoordinatorOutput) {
        let process = self.places[place].as_mut().unwrap();
        match output {
            // For the kernel of the agent to acknowledge.
            CoordinatorOutput::Send(_, Event::Alive(None)) => {}
            CoordinatorOutput::Send(id, event) => {
                let agent = id.0 - AGENTS;
                self.check(place, agent, &event);
                if let Event::Attached(authority) = &event
                    && authority.takes_voters
                {
                    self.attached.push_back((place, agent));
                }
                if let Event::Voters {
                    addresses,
                    invites: true,
                    ..
                } = &event
                {
                    self.invited.push((agent as usize, addresses.clone()));
                }
                self.events.entry(agent).or_default().push((place, event));
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
            CoordinatorOutput::Close(id, _) => self.closing.push_back((place, Some(id))),
            CoordinatorOutput::Note { .. }
            | CoordinatorOutput::Adopt(_)
            | CoordinatorOutput::Confirm(_) => {
                panic!("a note has left the voter")
            }
            CoordinatorOutput::LastCall { .. } | CoordinatorOutput::Recovering { .. } => {}
        }
    }

    /// The invariants: one coordinator in each term of a group, and one set of members for each round.
    fn check(&mut self, place: usize, agent: u32, event: &Event) {
        match event {
            Event::Attached(Authority { cluster, epoch, .. }) => {
                self.last_authority.insert(place, (*cluster, *epoch));
                let first = *(self.authorities.entry((*cluster, *epoch))).or_insert(place);
                let (seeds, story) = (self.seeds >> 20, self.story());
                assert_eq!(
                    first, place,
                    "seed {seeds}, two have epoch {epoch}: {story}"
                );
            }
            Event::Formed { round, rank, .. } => {
                let cluster = self.authority(place).0;
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

    /// The cluster and the epoch that the coordinator at a place has told last.
    pub(crate) fn authority(&self, place: usize) -> (u64, u32) {
        self.last_authority[&place]
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

    /// Processes connect to those that they are not connected to.
    fn connect(&mut self) {
        let can = |process: &Option<Process>| process.as_ref().is_some_and(|it| !it.has_retired);
        for from in 0..self.places.len() {
            for to in 0..self.places.len() {
                let link = (from, to);
                let process = self.places[from].as_ref();
                let calls = process.is_some_and(|it| it.calls.values().any(|called| *called == to));
                let is_there = self.links.contains_key(&link) || self.cut.contains(&link) || !calls;
                if from == to || is_there || !can(&self.places[from]) || !can(&self.places[to]) {
                    continue;
                }
                self.last_link += 1;
                assert!(self.last_link < AGENTS);
                self.links.insert(link, ConnId(self.last_link));
                let greeting = self.places[from].as_ref().unwrap().greeting.clone();
                self.send(link, greeting);
            }
        }
    }

    /// A frame is at its receiver.
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

    /// Time passes, in steps of a millisecond.
    pub(crate) fn pass(&mut self, time: Duration) {
        let until = self.now.mono + time;
        while self.now.mono < until {
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
            while let Some((place, agent)) = self.attached.pop_front() {
                if !self.of_before.contains(&agent) {
                    let is_voter = self.places.get(agent as usize).is_some_and(Option::is_some);
                    let willing = !is_voter && (agent as usize) < self.places.len();
                    self.ask(place, agent, &Operation::Candidate { willing });
                }
            }
            for (place, members) in std::mem::take(&mut self.invited) {
                if self.places[place].is_none() {
                    self.start_open(place, members);
                }
            }
            for place in 0..self.places.len() {
                let process = self.places[place].as_ref();
                let due = process.and_then(|process| process.voter.deadline());
                if due.is_some_and(|due| due <= self.now.mono) {
                    self.handle(place, Input::Tick);
                }
            }
        }
    }

    /// The places that have a coordinator.
    pub(crate) fn coordinators(&self) -> Vec<usize> {
        let places = self.places.iter().enumerate();
        let coordinates =
            |process: &Option<Process>| process.as_ref().is_some_and(|it| it.voter.coordinates());
        let found = places.filter(|(_, process)| coordinates(process));
        found.map(|(place, _)| place).collect()
    }

    /// The place of the coordinator, if there is one.
    pub(crate) fn coordinator(&self) -> Option<usize> {
        match self.coordinators()[..] {
            [place] => Some(place),
            _ => None,
        }
    }

    /// The endpoint of the coordinator, in the words of a voter.
    pub(crate) fn named_by(&self, place: usize) -> Option<String> {
        let process = self.places[place].as_ref()?;
        process.voter.coordinator().map(str::to_owned)
    }

    /// An agent asks the voter at a place for something.
    pub(crate) fn ask(&mut self, place: usize, agent: u32, operation: &Operation) {
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        self.dismissed.remove(&(place, agent));
        let request = Input::Request {
            from: ConnId(AGENTS + agent),
            opcode: bytes[0],
            payload: &bytes[9..],
        };
        self.handle(place, request);
    }

    pub(crate) fn join_of(&self, agent: u32, attempt: u32) -> Join {
        Join {
            instance: u64::from(agent) + 1,
            run: "run".to_owned(),
            node: NodeDesc {
                addr: format!("agent{agent}"),
                pid: 1,
                local_id: 0,
            },
            settings: self.settings,
            role: "default".to_owned(),
            local_world_size: 1,
            program: Some(Program::new("train.py", b"", true)),
            attempt: Some(attempt),
            replaces: Vec::new(),
            from: None,
        }
    }

    pub(crate) fn join(&mut self, place: usize, agent: u32, attempt: u32) {
        let join = self.join_of(agent, attempt);
        self.ask(place, agent, &Operation::Join(Box::new(join)));
    }

    /// An agent that obeyed the coordinator of `last` goes on at another one, with the round that it holds, if any.
    pub(crate) fn reattach(
        &mut self,
        place: usize,
        agent: u32,
        (cluster, epoch): (u64, u32),
        holds: Option<HeldRound>,
    ) {
        let address = match self.open {
            // The first coordinator was there.
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
        self.ask(place, agent, &Operation::Reattach(Box::new(reattach)));
    }

    /// The events that an agent has not been asked about.
    pub(crate) fn take(&mut self, agent: u32) -> Vec<Event> {
        let events = self.events.remove(&agent).unwrap_or_default();
        events.into_iter().map(|(_, event)| event).collect()
    }
}
