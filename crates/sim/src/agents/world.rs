//! Virtual time, and its events.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::rules::Rules;
use rdzv_core::time::Now;
use rdzv_rendezvous_proto::coordinator::{Coordinator, Note, Origin};
use rdzv_rendezvous_proto::{NodeDesc, RendezvousState, Rule, native_client, participant};

use super::agent::{ADDRESS, Agent, Doing, Input, peer_address};
use super::history::History;
use super::ledger::Ledger;
use super::plan::{Act, Medium, Plan};
use crate::report::{BUSY, Report, SETTLED_AFTER};
use crate::scheduler::{Scheduler, nanos};
use crate::trace::Trace;
use crate::{Result, broken};

/// Time for which everything must stay settled.
const LONG: Duration = Duration::from_secs(16);

#[derive(Debug)]
pub(super) enum Event {
    Act(usize, Act),
    Wake(usize),
    HostWakes,
    /// The workers of an agent have succeeded.
    Succeeds(usize),
    /// An event in this process of an agent, unless another process replaced it.
    Within(usize, u64, Within),
    /// The next piece for the coordinator, or for the agent, arrives.
    AtHost(u32),
    AtAgent(u32),
    /// A question arrives at the store; `true` if the agent no longer waits for it.
    Asked(Question, Ask, bool),
    Answered(Question, Answer),
    /// No answer arrived in time: the driver reconnects and asks for the state.
    GivenUp(Question),
    /// A torchrun agent sets another key.
    Set(Vec<u8>, Vec<u8>),
}

#[derive(Debug)]
pub(super) enum Within {
    JoinAgain,
    StartAgain,
    /// The keeper of a killed agent starts a replacement.
    KeptStarts,
    WorkersFail(u64),
    /// An agent whose workers have succeeded ends.
    ///
    /// It closes the run if the workers of all agents have succeeded.
    Finishes(bool),
    Dialed,
    Notice(participant::Input),
}

/// Question of a torchrun agent to the store.
#[derive(Debug)]
pub(super) enum Ask {
    Read,
    /// Write this state in place of the version that the agent saw last.
    Write(Box<RendezvousState>, u64),
}

/// Id of a question: the agent, its process and a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    pub(super) agent: usize,
    pub(super) process: u64,
    pub(super) number: u64,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) version: u64,
    pub(super) state: Option<Arc<RendezvousState>>,
    pub(super) won: bool,
}

/// Piece that arrives over a connection.
#[derive(Debug)]
pub(super) enum Piece {
    Bytes(Vec<u8>),
    /// End of the stream: the peer has closed it, or its process has ended.
    End,
    Reset,
}

/// One connection. The pieces of each queue arrive in order.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) agent: usize,
    pub(super) process: u64,
    pub(super) node: NodeDesc,
    pub(super) at_host: bool,
    pub(super) at_agent: bool,
    /// `true` if nothing arrives any more, without a notice to the ends.
    pub(super) cut: bool,
    /// `true` if a proxy is in between.
    ///
    /// The coordinator sees the address of the proxy, and the proxy may close the connection.
    pub(super) by_proxy: bool,
    pub(super) to_host: VecDeque<Piece>,
    pub(super) to_agent: VecDeque<Piece>,
}

/// Returns the origin of a coordinator that has moved `moves` times.
///
/// The coordinator is in the process of the agent with the instance `host`, or alone.
pub(super) fn origin(host: Option<u64>, recover: bool, moves: u32, rules: Rules<Rule>) -> Origin {
    let address = match moves {
        0 => ADDRESS.to_owned(),
        moves => format!("10.0.0.{}:29400", 1 + moves),
    };
    Origin {
        agent: host,
        addresses: [address].into(),
        recover,
        rules,
        ..Origin::default()
    }
}

/// World of one seed.
#[derive(Debug)]
pub struct World {
    pub(super) plan: Plan,
    pub(super) time: Scheduler<Event>,
    pub(super) agents: Vec<Agent>,
    /// Time at which each agent wakes up.
    pub(super) wakes: Vec<Option<u64>>,
    pub(super) host: Option<Coordinator>,
    pub(super) host_wakes: Option<u64>,
    pub(super) host_stall_end: u64,
    /// Record for the next coordinator.
    pub(super) note: Option<Note>,
    /// `true` if the record was lost, and no round has been recorded since.
    pub(super) is_unnoted: bool,
    /// Number of further outputs after which the coordinator is killed.
    pub(super) host_dies_after: Option<u32>,
    /// `true` if the operator has confirmed that all missing agents have exited.
    pub(super) recovers: bool,
    /// Number of times that the coordinator was started at another address.
    pub(super) moves: u32,
    pub(super) keys: BTreeMap<Vec<u8>, Vec<u8>>,
    /// State among the keys; `version` is the number of its changes.
    pub(super) state: Option<Arc<RendezvousState>>,
    pub(super) version: u64,
    pub(super) links: BTreeMap<u32, Link>,
    pub(super) next_link: u32,
    /// Process of each torchrun agent that has published the workers' endpoint.
    pub(super) leaders: BTreeMap<usize, u64>,
    pub(super) ledger: Ledger,
    pub(super) history: History,
    pub(super) report: Report,
}

impl World {
    /// Creates a world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        let mut time = Scheduler::new(seed, trace);
        let agents: Vec<Agent> = (0..plan.agents)
            .map(|number| {
                let stop_takes = Duration::from_millis(time.random.u64(0..3_000));
                Agent::new(number, &plan, time.random.u64(1..), stop_takes)
            })
            .collect();
        if trace == Trace::All {
            println!("{plan:#?}");
        }
        let note = || Note::new(seed, Duration::from_secs(60));
        let mut world = Self {
            ledger: Ledger::new(plan.settings),
            time,
            wakes: vec![None; agents.len()],
            host: match plan.medium {
                Medium::Coordinator => Some(Coordinator::with_rules(plan.rules)),
                Medium::Restartable => {
                    let host = plan.hosted.then(|| agents[0].instance);
                    let origin = origin(host, false, 0, plan.rules);
                    Some(Coordinator::restartable(Now::default(), note(), origin))
                }
                Medium::Store => None,
            },
            note: (plan.medium == Medium::Restartable).then(note),
            is_unnoted: false,
            host_dies_after: None,
            recovers: false,
            moves: 0,
            host_wakes: None,
            host_stall_end: 0,
            keys: BTreeMap::new(),
            state: None,
            version: 0,
            links: BTreeMap::new(),
            next_link: 0,
            leaders: BTreeMap::new(),
            history: History::default(),
            report: Report {
                agents: agents.len() as u64,
                ..Report::default()
            },
            agents,
            plan,
        };
        for (at, agent, act) in world.plan.acts.clone() {
            world.time.at(nanos(at), Event::Act(agent, act));
        }
        for (at, agent) in world.plan.successes.clone() {
            world.time.at(nanos(at), Event::Succeeds(agent));
        }
        world
    }

    /// Runs all events until nothing changes any more, and checks the result.
    pub fn run(mut self) -> Result<Report> {
        let end = nanos(self.plan.end);
        let deadline = end + nanos(SETTLED_AFTER) + 2 * nanos(self.plan.settings.last_call_timeout);
        let mut settled_since = None;
        while let Some(event) = self.time.pop() {
            if self.time.now > deadline {
                // The event at this time does not happen.
                self.time.count -= 1;
                break;
            }
            let bound = (self.time.now / 1_000_000_000 + 60) * BUSY * self.agents.len() as u64;
            if self.time.count > bound {
                return broken("the agents do something all the time");
            }
            self.happen(event)?;
            if self.time.now > end {
                let settled = self.unsettled().is_none();
                settled_since = settled_since.filter(|_| settled);
                if settled
                    && self.time.now - *settled_since.get_or_insert(self.time.now) > nanos(LONG)
                {
                    break;
                }
            }
        }
        if let Some(what) = self.unsettled() {
            return broken(format!("INV-R5: at the end, {what}"));
        }
        self.end_history()?;
        self.report.events = self.time.count;
        self.report.rounds = self.ledger.rounds();
        self.report.elapsed = Duration::from_nanos(self.time.now);
        Ok(self.report)
    }

    fn happen(&mut self, event: Event) -> Result {
        if let Some(agent) = self.of(&event)
            && self.agents[agent].stall_end > self.time.now
        {
            let end = self.agents[agent].stall_end;
            self.time.at(end, event);
            return Ok(());
        }
        match event {
            Event::Act(agent, act) => self.act(agent, act)?,
            Event::Wake(agent) => {
                self.wakes[agent] = None;
                match self.agents[agent].deadline() {
                    Some(due) if due <= self.time.now => self.tell(agent, Input::Tick)?,
                    _ => self.schedule(agent),
                }
            }
            Event::HostWakes => self.wake_host()?,
            Event::Succeeds(agent) => self.succeed(agent)?,
            Event::Within(agent, process, what) if self.agents[agent].process == process => {
                self.happen_within(agent, what)?;
            }
            Event::Within(..) => {}
            Event::AtHost(link) => self.at_host(link)?,
            Event::AtAgent(link) => self.at_agent(link)?,
            Event::Asked(question, ask, is_late) => self.asked(question, ask, is_late)?,
            Event::Answered(question, answer) => self.answered(question, answer)?,
            Event::GivenUp(question) => {
                if self.is_open(question) {
                    self.note(question.agent, || "asks again".into());
                    self.ask(question.agent, Ask::Read);
                }
            }
            Event::Set(key, value) => {
                self.put(key.clone(), Some(value));
                self.stored(&key)?;
            }
        }
        Ok(())
    }

    fn happen_within(&mut self, agent: usize, what: Within) -> Result {
        let it = &mut self.agents[agent];
        match what {
            Within::JoinAgain if it.doing == Doing::Stopping => {
                it.doing = Doing::Joining;
                self.tell(agent, Input::Join)
            }
            Within::WorkersFail(round) => self.fail_workers(agent, round),
            Within::Finishes(closes) if matches!(it.doing, Doing::Working(_)) => {
                self.ledger.succeeded |= closes;
                self.end(agent, closes)
            }
            Within::StartAgain if it.wanted => {
                // A process that could not start yet still knows which processes it replaces.
                if it.machine.is_some() {
                    self.crash(agent, false);
                    self.agents[agent].wanted = true;
                }
                self.start(agent)
            }
            Within::KeptStarts if it.wanted => self.start(agent),
            Within::Dialed if it.cut_end > self.time.now => {
                let why = "no answer".to_owned();
                let input = native_client::Input::Disconnected(why);
                self.tell(agent, Input::Native(input))
            }
            Within::Dialed => {
                let id = self.connect(agent);
                let connected = native_client::Input::Connected(Some(&peer_address(id)));
                self.tell(agent, Input::Native(connected))
            }
            Within::Notice(input) if it.cut_end <= self.time.now => {
                self.tell(agent, Input::Stock(input))
            }
            _ => Ok(()),
        }
    }

    /// Schedules an event in the agent's current process after `delay` nanoseconds.
    pub(super) fn later(&mut self, agent: usize, delay: u64, what: Within) {
        let process = self.agents[agent].process;
        self.time.after(delay, Event::Within(agent, process, what));
    }

    /// Returns the agent of an event, which must be awake for it.
    fn of(&self, event: &Event) -> Option<usize> {
        match event {
            Event::Within(_, _, Within::StartAgain | Within::KeptStarts) => None,
            Event::Wake(agent) | Event::Succeeds(agent) | Event::Within(agent, ..) => Some(*agent),
            Event::Answered(question, _) | Event::GivenUp(question) => Some(question.agent),
            Event::AtAgent(link) => self.links.get(link).map(|link| link.agent),
            _ => None,
        }
    }

    pub(super) fn schedule(&mut self, agent: usize) {
        let due = self.agents[agent].deadline();
        let wake = &mut self.wakes[agent];
        self.time.wake(wake, due, Event::Wake(agent));
    }

    pub(super) fn latency(&mut self) -> u64 {
        self.time.between(self.plan.latency)
    }

    pub(super) fn note(&self, agent: usize, what: impl FnOnce() -> String) {
        self.time.log(&self.agents[agent].me, what);
    }
}
