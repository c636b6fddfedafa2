//! Virtual time, the network and the store of the agents.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use rdzv_core::rendezvous::words::Input;
use rdzv_core::rendezvous::{NodeDesc, RendezvousState};

use super::agent::{Agent, Ask, Doing, Wishes};
use super::ledger::Ledger;
use super::plan::{Act, Plan};
use super::settled::unsettled;
use super::trace::{Teller, Trace, brief, shown};
use crate::Violation;

/// When a message is given up that no answer has come to.
const GIVEN_UP: Duration = Duration::from_secs(2);

/// How long after everything that is planned all must have come together again: the last call, the
/// time after which nodes are lost, stopping workers, and joining once more because of each.
const SETTLED_AFTER: Duration = Duration::from_secs(240);

/// Things that happen to one agent in a second of virtual time, on average; more is a busy loop.
const BUSY: u64 = 400;

/// What a run amounted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Report {
    /// Agents.
    pub agents: u64,
    /// Events that happened.
    pub events: u64,
    /// Rounds that were completed.
    pub rounds: u64,
    /// Times that an agent joined.
    pub joined: u64,
    /// Reads of the store.
    pub reads: u64,
    /// Writes that were tried.
    pub tried: u64,
    /// Writes that won.
    pub won: u64,
    /// When the last agent joined.
    pub last_joined: Duration,
    /// Virtual time that passed.
    pub elapsed: Duration,
}

/// Something that happens at a time. `process` tells a process of an agent from its successors.
#[derive(Debug)]
enum Event {
    Act(Act),
    /// The machine asked to be called, or the agent wants to join again.
    Wake {
        process: u64,
    },
    JoinAgain {
        process: u64,
    },
    /// A question arrives at the store. `blind`: nobody waits for the answer any more.
    AtStore {
        process: u64,
        number: u64,
        ask: Ask,
        blind: bool,
    },
    /// An answer arrives.
    Answer {
        process: u64,
        number: u64,
        version: u64,
        state: Option<Arc<RendezvousState>>,
        won: bool,
    },
    /// No answer came in time: the shell connects anew, and asks what the store holds.
    GivenUp {
        process: u64,
        number: u64,
    },
    /// The store says something by itself.
    Notice {
        process: u64,
        input: Input,
    },
}

/// The world of one seed.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    random: Rng,
    teller: Teller,
    now: u64,
    sequence: u64,
    events: BTreeMap<(u64, u64), (usize, Event)>,
    agents: Vec<Agent>,
    /// What the store holds, and how often it was written.
    stored: Option<Arc<RendezvousState>>,
    version: u64,
    ledger: Ledger,
    /// Until this time agents may look lost although they are not.
    faults_until: u64,
    report: Report,
}

impl World {
    /// A world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        let mut random = Rng::with_seed(seed);
        let agents = (0..plan.agents)
            .map(|number| {
                let stop_takes = Duration::from_millis(random.u64(0..3_000));
                Agent::new(number, plan.settings, plan.skew[number], stop_takes)
            })
            .collect();
        let mut world = Self {
            ledger: Ledger::new(plan.settings),
            random,
            teller: Teller::new(trace),
            now: 0,
            sequence: 0,
            events: BTreeMap::new(),
            agents,
            stored: None,
            version: 0,
            faults_until: 0,
            report: Report {
                agents: plan.agents as u64,
                ..Report::default()
            },
            plan,
        };
        if trace == Trace::All {
            println!("{:#?}", world.plan);
        }
        for (at, agent, act) in world.plan.acts.clone() {
            world.at(nanos(at), agent, Event::Act(act));
        }
        world
    }

    /// Lets everything happen until nothing changes any more, and looks at what has come of it.
    pub fn run(mut self) -> Result<Report, Violation> {
        let result = self.go();
        if result.is_err() {
            self.teller.tell_last();
        }
        result
    }

    fn go(&mut self) -> Result<Report, Violation> {
        let end = nanos(self.plan.end);
        let deadline = end + nanos(SETTLED_AFTER) + 2 * nanos(self.plan.settings.last_call_timeout);
        let mut settled_since = None;
        let mut look_at = 0;
        while let Some(((time, _), (agent, event))) = self.events.pop_first() {
            self.now = time;
            if self.now > deadline {
                break;
            }
            self.report.events += 1;
            let bound = (self.now / 1_000_000_000 + 60) * BUSY * self.agents.len() as u64;
            if self.report.events > bound {
                return Err(Violation("the agents do something all the time".into()));
            }
            self.happen(agent, event)?;
            if self.now > end && self.now >= look_at {
                look_at = self.now + 500_000_000;
                let settled = self.unsettled().is_none();
                settled_since = settled_since.filter(|_| settled);
                if settled {
                    let since = *settled_since.get_or_insert(self.now);
                    if self.now - since > 16_000_000_000 {
                        break;
                    }
                }
            }
        }
        if !self.plan.clocks_are_wrong
            && let Some(what) = self.unsettled()
        {
            return Err(Violation(format!("R5: {what}")));
        }
        self.report.rounds = self.ledger.rounds();
        self.report.reads = self.agents.iter().map(|agent| agent.reads).sum();
        self.report.tried = self.agents.iter().map(|agent| agent.tried).sum();
        self.report.won = self.agents.iter().map(|agent| agent.won).sum();
        self.report.elapsed = Duration::from_nanos(self.now);
        Ok(self.report)
    }

    fn unsettled(&self) -> Option<String> {
        unsettled(&self.agents, self.stored.as_deref(), &self.plan.settings)
    }

    fn at(&mut self, time: u64, agent: usize, event: Event) {
        self.sequence += 1;
        self.events
            .insert((time.max(self.now), self.sequence), (agent, event));
    }

    fn happen(&mut self, number: usize, event: Event) -> Result<(), Violation> {
        let agent = &self.agents[number];
        let stalled = self.now < agent.stalled_until;
        match event {
            Event::Act(act) => {
                self.tell(number, || format!("{act:?}"));
                self.act(number, act)
            }
            Event::AtStore {
                process,
                number: asked,
                ask,
                blind,
            } => {
                self.at_store(number, process, asked, ask, blind)?;
                Ok(())
            }
            // A process that stands still finds everything later.
            event if stalled => {
                let until = agent.stalled_until;
                self.at(until, number, event);
                Ok(())
            }
            Event::Wake { process } => {
                let due = agent.deadline().is_some_and(|due| due <= self.now);
                if process == agent.process && due && agent.doing != Doing::Nothing {
                    self.step(number, Input::Tick)?;
                }
                Ok(())
            }
            Event::JoinAgain { process } => {
                if process == agent.process && agent.doing == Doing::Stopping {
                    self.agents[number].doing = Doing::Joining;
                    self.step(number, Input::Join)?;
                }
                Ok(())
            }
            Event::Notice { process, input } => {
                let reachable = self.now >= agent.cut_until;
                if process == agent.process && reachable && agent.doing != Doing::Nothing {
                    self.step(number, input)?;
                }
                Ok(())
            }
            Event::Answer {
                process,
                number: asked,
                version,
                state,
                won,
            } => self.answer(number, process, asked, version, state, won),
            Event::GivenUp {
                process,
                number: asked,
            } => {
                if process == agent.process && asked == agent.asked {
                    self.tell(number, || "asks again".into());
                    self.send(number, Ask::Read);
                }
                Ok(())
            }
        }
    }

    fn act(&mut self, number: usize, act: Act) -> Result<(), Violation> {
        let running = self.agents[number].doing != Doing::Nothing;
        match act {
            Act::Start if !running => {
                let poll = (!self.plan.notifies).then_some(Duration::from_secs(1));
                let seed = self.random.u64(..);
                let agent = &mut self.agents[number];
                let wishes = agent.start(self.now, self.plan.settings, poll, seed);
                return self.grant(number, wishes);
            }
            Act::Restart if matches!(self.agents[number].doing, Doing::Working(_)) => {
                self.agents[number].doing = Doing::Joining;
                return self.step(number, Input::Join);
            }
            Act::Leave if running => {
                self.agents[number].doing = Doing::Ending;
                return self.step(number, Input::Leave);
            }
            Act::Close if running => {
                self.agents[number].doing = Doing::Ending;
                return self.step(number, Input::Close);
            }
            Act::Crash if running => {
                self.agents[number].crash();
                if self.plan.notices_dead {
                    self.notice_dead(number);
                }
            }
            Act::Stall(duration) => {
                self.agents[number].stalled_until = self.now + nanos(duration);
                self.fault_until(self.agents[number].stalled_until);
            }
            Act::Cut(duration) => {
                self.agents[number].cut_until = self.now + nanos(duration);
                self.fault_until(self.agents[number].cut_until);
                // What the store notices need not be true.
                if self.plan.notices_dead && duration > Duration::from_secs(10) && running {
                    self.notice_dead(number);
                }
            }
            Act::ClockJump(seconds) => {
                self.agents[number].skew += (seconds * 1e6) as i64;
                self.fault_until(self.now);
            }
            _ => {}
        }
        Ok(())
    }

    fn fault_until(&mut self, time: u64) {
        self.faults_until = self.faults_until.max(time);
    }

    fn notice_dead(&mut self, number: usize) {
        let dead = self.agents[number].me.clone();
        for other in 0..self.agents.len() {
            if other != number {
                let at = self.now + self.random.u64(0..3_000_000_000);
                let process = self.agents[other].process;
                let input = Input::Gone(vec![dead.clone()]);
                self.at(at, other, Event::Notice { process, input });
            }
        }
    }

    fn step(&mut self, number: usize, input: Input) -> Result<(), Violation> {
        let shown = if self.teller.is_on() {
            shown(&input)
        } else {
            String::new()
        };
        let wishes = self.agents[number].handle(self.now, input);
        self.tell(number, || {
            format!("{shown}: {}", self.agents[number].reason())
        });
        self.grant(number, wishes)
    }

    fn grant(&mut self, number: usize, wishes: Wishes) -> Result<(), Violation> {
        let process = self.agents[number].process;
        if let Some(ask) = wishes.ask {
            self.agents[number].writing = matches!(ask, Ask::Write(..));
            self.send(number, ask);
        }
        if let Some(formed) = wishes.joined {
            self.tell(number, || format!("joined {formed:?}"));
            self.report.joined += 1;
            self.report.last_joined = Duration::from_nanos(self.now);
            let agent = &self.agents[number];
            self.ledger.joined(&agent.me, &formed, agent.state())?;
        }
        if wishes.timed_out {
            self.tell(number, || "was not in time".into());
            let up = self
                .agents
                .iter()
                .filter(|agent| agent.doing != Doing::Nothing)
                .count();
            if !self.plan.faulty && up == self.plan.agents && !self.left() {
                return Err(Violation("R5: an agent was not in time".into()));
            }
        }
        if !self.plan.faulty {
            let me = &self.agents[number].me;
            if wishes.dropped {
                return Err(Violation(format!("R5: {me} was dropped")));
            }
            let alive = |node: &NodeDesc| {
                self.agents
                    .iter()
                    .any(|agent| agent.me == *node && agent.doing != Doing::Nothing)
            };
            if let Some(node) = wishes.lost.iter().find(|node| alive(node)) {
                let leaves = self
                    .agents
                    .iter()
                    .any(|agent| agent.me == *node && agent.doing == Doing::Ending);
                if !leaves {
                    return Err(Violation(format!("R5: {me} was told that {node} is lost")));
                }
            }
        }
        if !wishes.lost.is_empty() || wishes.dropped {
            self.tell(number, || {
                format!("lost {:?} dropped {}", wishes.lost, wishes.dropped)
            });
        }
        if let Some(after) = wishes.join_again {
            let at = self.now + nanos(after);
            self.at(at, number, Event::JoinAgain { process });
        }
        let agent = &self.agents[number];
        // An agent whose run was closed has nothing more to do.
        if agent.doing == Doing::Ending && agent.state().is_some_and(|state| state.closed) {
            self.agents[number].crash();
        } else if let Some(due) = agent.deadline() {
            self.at(due, number, Event::Wake { process });
        }
        Ok(())
    }

    /// Whether anybody is to leave, so that too few may remain.
    fn left(&self) -> bool {
        self.plan
            .acts
            .iter()
            .any(|(_, _, act)| matches!(act, Act::Leave | Act::Crash | Act::Close))
    }

    /// Sends a question on its way.
    fn send(&mut self, number: usize, ask: Ask) {
        let agent = &mut self.agents[number];
        agent.asked += 1;
        let (process, asked) = (agent.process, agent.asked);
        let cut = self.now < agent.cut_until;
        let given_up = Event::GivenUp {
            process,
            number: asked,
        };
        self.tell(number, || match &ask {
            Ask::Read => "asks".into(),
            Ask::Write(state, version) => format!("writes after {version}: {}", brief(state)),
        });
        let mut event = Event::AtStore {
            process,
            number: asked,
            ask,
            blind: false,
        };
        if cut || self.is_lost() {
            self.at(self.now + nanos(GIVEN_UP), number, given_up);
            // Sometimes it arrives nevertheless, when nobody counts on it any more.
            if self.random.bool() {
                return;
            }
            if let Event::AtStore { blind, .. } = &mut event {
                *blind = true;
            }
            let late = self.now + self.random.u64(0..2 * nanos(GIVEN_UP));
            let late = late.max(self.agents[number].cut_until);
            self.at(late, number, event);
            return;
        }
        let arrival = self.now + self.latency();
        self.at(arrival, number, event);
    }

    fn at_store(
        &mut self,
        number: usize,
        process: u64,
        asked: u64,
        ask: Ask,
        blind: bool,
    ) -> Result<(), Violation> {
        let mut won = false;
        if let Ask::Write(state, expected) = ask
            && expected == self.version
        {
            won = true;
            let old = self.stored.take().unwrap_or_default();
            self.ledger.wrote(&old, &state)?;
            self.stored = Some(Arc::from(state));
            self.version += 1;
            self.agents[number].won += 1;
            if self.plan.notifies {
                self.notify(number);
            }
        }
        let agent = &self.agents[number];
        let lost = blind || self.now < agent.cut_until || self.is_lost();
        if lost && !blind {
            let event = Event::GivenUp {
                process,
                number: asked,
            };
            self.at(self.now + nanos(GIVEN_UP), number, event);
        }
        if !lost {
            let event = Event::Answer {
                process,
                number: asked,
                version: self.version,
                state: self.stored.clone(),
                won,
            };
            let arrival = self.now + self.latency();
            self.at(arrival, number, event);
        }
        Ok(())
    }

    /// Tells everybody, the writer too, that something was written.
    fn notify(&mut self, _writer: usize) {
        for other in 0..self.agents.len() {
            if self.agents[other].doing == Doing::Nothing {
                continue;
            }
            let arrival = self.now + self.latency();
            let process = self.agents[other].process;
            let input = Input::Changed;
            self.at(arrival, other, Event::Notice { process, input });
        }
    }

    fn answer(
        &mut self,
        number: usize,
        process: u64,
        asked: u64,
        version: u64,
        state: Option<Arc<RendezvousState>>,
        won: bool,
    ) -> Result<(), Violation> {
        let agent = &mut self.agents[number];
        if process != agent.process || asked != agent.asked || agent.doing == Doing::Nothing {
            return Ok(());
        }
        agent.version = version;
        // Answered: nothing that is on its way now is waited for.
        agent.asked += 1;
        let state = state.map(Arc::unwrap_or_clone);
        // A write whose answer was lost was followed by a read: nobody knows who won.
        let input = if std::mem::take(&mut agent.writing) {
            Input::Written { state, won }
        } else {
            Input::Read(state)
        };
        self.step(number, input)
    }

    fn latency(&mut self) -> u64 {
        let (least, most) = self.plan.latency;
        self.random.u64(nanos(least)..=nanos(most))
    }

    /// Whether the next message is lost. Faults end when the plan does.
    fn is_lost(&mut self) -> bool {
        self.plan.loses_one_of > 0
            && self.now <= nanos(self.plan.end)
            && self.random.u32(0..self.plan.loses_one_of) == 0
    }

    fn tell(&self, number: usize, text: impl FnOnce() -> String) {
        self.teller.tell(self.now, &self.agents[number].me, text);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
