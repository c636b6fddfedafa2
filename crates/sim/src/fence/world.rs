//! Machines, their connections and clocks.

mod network;
mod node;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_core::time::{Mono, Now, Wall};
use rdzv_rendezvous_proto::coordinator::wire::Event as Told;
use rdzv_rendezvous_proto::coordinator::{self, Input as Request, Note, Origin};
use rdzv_rendezvous_proto::fence::{self, Fence};
use rdzv_rendezvous_proto::native_client::{self as agent, NativeClient};
use rdzv_voters as voter;
use rdzv_voters::{Open, Start, Voter};

use super::{Act, Plan};
use crate::scheduler::{Scheduler, nanos};
use crate::trace::Trace;
use crate::{Result, broken};

/// Maximum time that a signal takes to stop or kill all workers.
pub const SIGNALS_TAKE: Duration = Duration::from_millis(240);

const MACHINES: usize = 3;
const MS: u64 = 1_000_000;

/// Time after which the connections of a machine that is cut off break.
const BREAKS: u64 = 2000 * MS;

/// Time after the last fault within which all nodes are in one round again.
const SETTLES: u64 = 60_000 * MS;

#[derive(Debug)]
enum Event {
    Act(Act),
    Heal(usize),
    Fast(usize),
    Connect,
    Wake(usize),
    /// Bytes arrive at the voter of a machine.
    Request(usize, ConnId, Vec<u8>),
    /// Bytes arrive at the agent of a machine.
    Answer(usize, ConnId, Vec<u8>),
    /// A voter receives the end of a connection.
    VoterHears(usize, ConnId),
    /// The stream of an agent ends cleanly.
    StreamEnds(usize, ConnId),
    AgentHears(usize, ConnId),
    /// A cut has lasted until connections break.
    Break(usize),
    Begin(usize),
    /// Events of one process of an agent.
    Dial(usize, u64),
    NotFound(usize, u64),
    Join(usize, u64),
    Signal(usize, u64, fence::Output),
    /// The workers of a round end within their shutdown timeout.
    Ended(usize, u64),
    /// The workers end with their agent.
    Killed(usize, u64),
}

/// A connection to a voter.
#[derive(Debug, Clone, Copy)]
struct Link {
    from: usize,
    to: usize,
    is_agent: bool,
    /// Arrival time of the last bytes, in each direction.
    last: [u64; 2],
}

#[derive(Debug)]
struct Machine {
    clock: (u64, f64),
    voter: Voter,
    /// Machine at each endpoint index of its voter.
    calls: BTreeMap<usize, usize>,
    greeting: Vec<u8>,
    keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Keys that the coordinator wants to read.
    reads: VecDeque<Vec<u8>>,
    stall_end: u64,
    slow: u64,
    client: Option<NativeClient>,
    /// Number of the agent's process.
    life: u64,
    connection: Option<ConnId>,
    fence: Fence,
    /// Round of the workers, number of their start, and `true` if suspended.
    workers: Option<(u64, u64, bool)>,
    starts: u64,
    signalled: u64,
    wake: Option<u64>,
}

/// Totals of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of announced rounds.
    pub rounds: u64,
    /// Number of times that workers were suspended.
    pub stops: u64,
    /// Number of times that workers continued.
    pub continued: u64,
    /// Number of times that the fence killed workers.
    pub kills: u64,
    /// Number of agents that were killed while workers ran.
    pub ended: u64,
    /// Number of times that the coordinator turned the fence of an agent off.
    pub lifted: u64,
}

/// World of one seed.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    time: Scheduler<Event>,
    machines: Vec<Machine>,
    links: BTreeMap<ConnId, Link>,
    last_link: u32,
    cut: BTreeSet<usize>,
    announced: Option<u64>,
    report: Report,
}

impl World {
    /// Creates a world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        let mut time = Scheduler::new(seed, trace);
        let endpoint = |it: usize| format!("n{it}:1");
        let machines = (0..MACHINES).map(|own| {
            let machines: Vec<usize> = match (plan.is_open, own) {
                (false, _) => (0..MACHINES).collect(),
                (true, 0) => vec![0],
                (true, own) => vec![0, own],
            };
            let open = plan.is_open.then(|| Open {
                run: "run".to_owned(),
                most: MACHINES,
                start: match own {
                    0 => Start::Alone {
                        note: Box::new(Note::new(7, Duration::from_secs(120))),
                        origin: Origin {
                            agent: Some(1),
                            addresses: [endpoint(0)].into(),
                            rules: plan.rules,
                            ..Origin::default()
                        },
                    },
                    _ => Start::Invited,
                },
            });
            let own_index = machines.iter().position(|it| *it == own).unwrap_or(0);
            Machine {
                clock: (
                    time.random.u64(0..1_000_000_000_000),
                    [0.976, 1.0, 1.024][time.random.usize(0..3)],
                ),
                voter: Voter::new(voter::Settings {
                    open,
                    endpoints: machines.iter().map(|it| endpoint(*it)).collect(),
                    own: own_index,
                    // In half of the runs, machine 0 is a store, to which coordinators hand over.
                    is_store: own == 0 && seed.is_multiple_of(2),
                    // The first agent of the machine, unless a store runs alone in the process.
                    agent: (own != 0 || !seed.is_multiple_of(2)).then_some(own as u64 + 1),
                    seed: time.random.u64(1..),
                    timeout: Duration::from_secs(120),
                    node_timeout: plan.node_timeout,
                    rules: plan.rules,
                }),
                calls: machines.iter().copied().enumerate().collect(),
                greeting: Vec::new(),
                keys: BTreeMap::new(),
                reads: VecDeque::new(),
                stall_end: 0,
                slow: 0,
                client: None,
                life: 0,
                connection: None,
                fence: Fence::new(Duration::from_secs(60), plan.rules),
                workers: None,
                starts: 0,
                signalled: 0,
                wake: None,
            }
        });
        let machines = machines.collect();
        Self {
            plan,
            time,
            machines,
            links: BTreeMap::new(),
            last_link: 0,
            cut: BTreeSet::new(),
            announced: None,
            report: Report::default(),
        }
    }

    /// Runs all events, and checks the result.
    pub fn run(mut self) -> Result<Report> {
        for (at, act) in self.plan.acts.clone() {
            self.time.at(nanos(at), Event::Act(act));
        }
        for it in 0..MACHINES {
            self.drain_voter(it)?;
            self.schedule(it);
            self.time.at(1000 * MS, Event::Begin(it));
        }
        self.time.at(0, Event::Connect);
        let end = nanos(self.plan.end);
        self.run_to(end)?;
        for it in 0..MACHINES {
            self.machines[it].slow = 0;
            self.time.at(end, Event::Heal(it));
        }
        self.run_to(end + SETTLES)?;
        let rounds = self.machines.iter().map(|it| it.workers);
        let rounds: Vec<_> = rounds
            .map(|workers| workers.map(|(round, _, stopped)| (round, stopped)))
            .collect();
        let is_settled = rounds[0].is_some_and(|(_, stopped)| !stopped)
            && rounds.iter().all(|round| *round == rounds[0]);
        if is_settled {
            Ok(self.report)
        } else {
            broken(format!("long after all faults, workers are in {rounds:?}"))
        }
    }

    fn run_to(&mut self, end: u64) -> Result {
        while self.time.now < end {
            let Some(event) = self.time.pop() else {
                return Ok(());
            };
            self.happen(event)?;
            if self.time.count > 3_000_000 {
                return broken("the machines do something all the time");
            }
        }
        Ok(())
    }

    fn now(&self, it: usize) -> Now {
        let (offset, rate) = self.machines[it].clock;
        let local = offset + (self.time.now as f64 * rate) as u64;
        Now {
            mono: Mono::from_origin(Duration::from_nanos(local)),
            wall: Wall::from_unix_micros((local / 1000) as i64),
        }
    }

    fn schedule(&mut self, it: usize) {
        let now = self.time.now;
        let machine = &mut self.machines[it];
        let (offset, rate) = machine.clock;
        let world = |due: Mono| {
            (nanos(due.since(Mono::ZERO)).saturating_sub(offset) as f64 / rate) as u64 + 1
        };
        let voter = machine.voter.deadline().map(world);
        let voter = voter.map(|due| due.max(machine.stall_end));
        let client = machine.client.as_ref().and_then(|client| client.deadline());
        let others = [client, machine.fence.deadline()];
        let due = others.into_iter().flatten().map(world).chain(voter).min();
        if let Some(due) = due.map(|due| due.max(now))
            && machine.wake.is_none_or(|wake| due < wake || wake < now)
        {
            machine.wake = Some(due);
            self.time.at(due, Event::Wake(it));
        }
    }

    fn happen(&mut self, event: Event) -> Result {
        let of_voter = match &event {
            Event::Request(it, ..) | Event::VoterHears(it, _) | Event::StreamEnds(it, _) => {
                Some(*it)
            }
            _ => None,
        };
        if let Some(it) = of_voter
            && self.machines[it].stall_end > self.time.now
        {
            let end = self.machines[it].stall_end;
            self.time.at(end, event);
            return Ok(());
        }
        match event {
            Event::Act(act) => self.act(act),
            Event::Heal(it) => {
                // The lost messages have broken the connections.
                if self.cut.contains(&it) {
                    self.break_links(it);
                    self.cut.remove(&it);
                }
            }
            Event::Fast(it) => self.machines[it].slow = 0,
            Event::Break(it) => {
                if self.cut.contains(&it) {
                    self.break_links(it);
                }
            }
            Event::Connect => {
                self.connect();
                self.time.after(20 * MS, Event::Connect);
            }
            Event::Wake(it) => return self.wake(it),
            Event::Request(it, from, bytes) => {
                let Some(link) = self.links.get(&from) else {
                    return Ok(());
                };
                if self.is_reachable(link.from, it) {
                    let request = Request::Request {
                        from,
                        opcode: bytes[0],
                        payload: &bytes[9..],
                    };
                    return self.tell_voter(it, request);
                }
            }
            Event::Answer(it, from, bytes) => {
                let machine = &self.machines[it];
                let Some(link) = self.links.get(&from) else {
                    return Ok(());
                };
                if machine.connection == Some(from) && self.is_reachable(link.to, it) {
                    return self.tell_agent(it, agent::Input::Bytes(&bytes));
                }
            }
            Event::VoterHears(it, id) => return self.tell_voter(it, Request::Closed(id)),
            Event::StreamEnds(it, id) => {
                let Some(link) = self.links.get(&id) else {
                    return Ok(());
                };
                // Without an answer, the connection breaks later.
                if self.is_reachable(link.from, it) {
                    self.links.remove(&id);
                    let peer = Some(node::peer_address(id));
                    self.tell_voter(it, Request::EndOfStream { id, peer })?;
                    return self.tell_voter(it, Request::Closed(id));
                }
            }
            Event::AgentHears(it, id) => {
                if self.machines[it].connection == Some(id) {
                    self.machines[it].connection = None;
                    let why = "it broke".to_owned();
                    return self.tell_agent(it, agent::Input::Disconnected(why));
                }
            }
            Event::Begin(it) => self.begin(it),
            Event::Dial(it, life) | Event::NotFound(it, life) | Event::Join(it, life)
                if self.machines[it].life != life => {}
            Event::Dial(it, _) => return self.dial(it),
            Event::NotFound(it, _) => {
                let why = "no coordinator".to_owned();
                return self.tell_agent(it, agent::Input::Disconnected(why));
            }
            Event::Join(it, _) => {
                return self.tell_agent(
                    it,
                    agent::Input::Join {
                        role: "default",
                        local_world_size: 1,
                        lost: &[],
                    },
                );
            }
            Event::Signal(it, start, signal) => return self.signalled(it, start, signal),
            Event::Ended(it, start) => {
                if self.machines[it]
                    .workers
                    .is_some_and(|(_, of, _)| of == start)
                {
                    return self.workers_are_gone(it);
                }
            }
            Event::Killed(it, start) => {
                let workers = &mut self.machines[it].workers;
                if workers.is_some_and(|(_, of, _)| of == start) {
                    *workers = None;
                }
            }
        }
        Ok(())
    }

    fn act(&mut self, act: Act) {
        self.time.log("world", || format!("{act:?}"));
        let now = self.time.now;
        match act {
            Act::Cut(it, time) => {
                if self.cut.insert(it) {
                    self.time.at(now + BREAKS, Event::Break(it));
                    self.time.at(now + nanos(time), Event::Heal(it));
                }
            }
            Act::Slow(it, time) => {
                self.machines[it].slow = nanos(time);
                self.time.at(now + 3000 * MS, Event::Fast(it));
            }
            Act::Stall(it, time) => self.machines[it].stall_end = now + nanos(time),
            Act::Reset(it) => {
                if let Some(id) = self.machines[it].connection {
                    self.hang_up(id);
                }
            }
            Act::Kill(it, time) => self.kill(it, nanos(time)),
        }
    }

    fn wake(&mut self, it: usize) -> Result {
        self.machines[it].wake = None;
        let now = self.now(it);
        let is_due = |due: Option<Mono>| due.is_some_and(|due| due <= now.mono);
        if is_due(self.machines[it].fence.deadline()) {
            self.tell_fence(it, fence::Input::Tick)?;
        }
        let client = self.machines[it].client.as_ref();
        if is_due(client.and_then(|client| client.deadline())) {
            self.tell_agent(it, agent::Input::Tick)?;
        }
        let machine = &self.machines[it];
        if machine.stall_end <= self.time.now && is_due(machine.voter.deadline()) {
            self.tell_voter(it, Request::Tick)?;
        }
        self.schedule(it);
        Ok(())
    }

    fn tell_voter(&mut self, it: usize, input: Request<'_>) -> Result {
        let now = self.now(it);
        self.machines[it].voter.handle(now, input);
        self.drain_voter(it)?;
        self.schedule(it);
        Ok(())
    }

    fn drain_voter(&mut self, it: usize) -> Result {
        while let Some(output) = self.machines[it].voter.poll_output() {
            match output {
                voter::Output::Coordinator(output) => self.coordinator(it, output)?,
                voter::Output::ToPeer { index, frame } => {
                    let to = self.machines[it].calls.get(&index).copied();
                    let links = self.links_from(it);
                    if let Some((id, _)) = links.into_iter().find(|(_, end)| Some(*end) == to) {
                        self.send(id, frame);
                    }
                }
                voter::Output::Greet(frame) => {
                    self.machines[it].greeting.clone_from(&frame);
                    for (id, _) in self.links_from(it) {
                        self.send(id, frame.clone());
                    }
                }
                voter::Output::Dismiss(id, _) => self.hang_up(id),
                voter::Output::SteppedDown => self.machines[it].keys.clear(),
                voter::Output::Log(fact) => {
                    self.time.log(format!("n{it}"), || fact.to_string());
                    if fact == voter::Fact::GaveUp {
                        return broken("a group whose voters all live leaves");
                    }
                }
                voter::Output::Call { index, address } => {
                    let calls = &mut self.machines[it].calls;
                    calls.remove(&index);
                    let number = address.and_then(|it| it[1..2].parse().ok());
                    calls.extend(number.map(|number| (index, number)));
                }
                voter::Output::Reply(..) | voter::Output::Retire | voter::Output::Note(_) => {}
            }
        }
        if let Some(key) = self.machines[it].reads.pop_front() {
            let value = self.machines[it].keys.get(&key).cloned();
            let value = value.as_deref();
            return self.tell_voter(it, Request::Found { key: &key, value });
        }
        Ok(())
    }

    fn coordinator(&mut self, it: usize, output: coordinator::Output) -> Result {
        match output {
            coordinator::Output::Send(id, event) => {
                let to = self.links.get(&id).map(|link| link.from);
                self.time
                    .log(format!("n{it}"), || format!("tells {to:?} {event:?}"));
                self.report.lifted += u64::from(matches!(event, Told::Fence { acts: false, .. }));
                if let Told::Formed { round, .. } = event {
                    self.announce(round)?;
                }
                let mut bytes = Vec::new();
                event.write(&mut bytes);
                if let Some(at) = self.arrival(id, 1) {
                    let to = self.links[&id].from;
                    self.time.at(at, Event::Answer(to, id, bytes));
                }
            }
            coordinator::Output::Read(key) => self.machines[it].reads.push_back(key),
            coordinator::Output::Store { key, value } => {
                self.machines[it].keys.insert(key, value);
            }
            coordinator::Output::Remove(key) => drop(self.machines[it].keys.remove(&key)),
            coordinator::Output::Close(id, why) => {
                self.time
                    .log(format!("n{it}"), || format!("closes {id:?}: {why}"));
                self.hang_up(id);
            }
            _ => {}
        }
        Ok(())
    }

    /// Announces a round; no workers of older rounds may run.
    fn announce(&mut self, round: u64) -> Result {
        if self.announced < Some(round) {
            self.announced = Some(round);
            self.report.rounds += 1;
            self.time
                .log("world", || format!("round {round} is announced"));
        }
        self.check()
    }

    fn check(&self) -> Result {
        for (it, machine) in self.machines.iter().enumerate() {
            let has_fence = !self.plan.is_open || machine.fence.lease_end().is_some();
            if let Some((round, _, false)) = machine.workers
                && Some(round) < self.announced
                && has_fence
            {
                return broken(format!(
                    "INV-F1: workers of round {round} run at n{it} when round {:?} is announced",
                    self.announced
                ));
            }
        }
        Ok(())
    }
}
