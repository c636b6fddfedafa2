//! Virtual time, and what happens in it.

use std::sync::Arc;
use std::time::Duration;

use rdzv_rendezvous_proto::RendezvousState;
use rdzv_rendezvous_proto::participant::Input;

use super::agent::{Agent, Ask, Doing};
use super::ledger::Ledger;
use super::plan::{Act, Plan};
use super::settled::unsettled;
use crate::Violation;
use crate::report::{BUSY, Report, SETTLED_AFTER};
use crate::scheduler::{Scheduler, nanos};
use crate::trace::Trace;

/// What the store answers.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) version: u64,
    pub(super) state: Option<Arc<RendezvousState>>,
    pub(super) won: bool,
}

/// Something that happens at a time, in this process of the agent; questions have a number as well.
#[derive(Debug)]
pub(super) enum Event {
    Act(Act),
    /// The machine asked to be called, or the agent wants to join again.
    Wake(u64),
    JoinAgain(u64),
    /// A question arrives at the store. True: nobody waits for the answer any more.
    AtStore(u64, u64, Ask, bool),
    /// An answer arrives.
    Answer(u64, u64, Answer),
    /// No answer came in time: the shell connects anew, and asks what the store holds.
    GivenUp(u64, u64),
    /// The store says something by itself.
    Notice(u64, Input),
}

/// The world of one seed.
#[derive(Debug)]
pub struct World {
    pub(super) plan: Plan,
    /// Events, each with its agent.
    pub(super) time: Scheduler<(usize, Event)>,
    pub(super) agents: Vec<Agent>,
    /// What the store holds, and how often it was written.
    pub(super) stored: Option<Arc<RendezvousState>>,
    pub(super) version: u64,
    pub(super) ledger: Ledger,
    /// Until this time agents may look lost although they are not.
    pub(super) faults_until: u64,
    pub(super) report: Report,
}

impl World {
    /// A world in which nothing has happened yet.
    pub fn new(plan: Plan, seed: u64, trace: Trace) -> Self {
        let mut time = Scheduler::new(seed, trace);
        let agents = (0..plan.agents)
            .map(|number| {
                let stop_takes = Duration::from_millis(time.random.u64(0..3_000));
                Agent::new(number, plan.settings, plan.skew[number], stop_takes)
            })
            .collect();
        let mut world = Self {
            ledger: Ledger::new(plan.settings),
            time,
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
        self.time.finish(result)
    }

    fn go(&mut self) -> Result<Report, Violation> {
        let end = nanos(self.plan.end);
        let deadline = end + nanos(SETTLED_AFTER) + 2 * nanos(self.plan.settings.last_call_timeout);
        let mut settled_since = None;
        let mut look_at = 0;
        while let Some((agent, event)) = self.time.pop() {
            if self.time.now > deadline {
                // It does not happen.
                self.time.count -= 1;
                break;
            }
            let bound = (self.time.now / 1_000_000_000 + 60) * BUSY * self.agents.len() as u64;
            if self.time.count > bound {
                return Err(Violation("the agents do something all the time".into()));
            }
            self.happen(agent, event)?;
            if self.time.now > end && self.time.now >= look_at {
                look_at = self.time.now + 500_000_000;
                let settled = self.unsettled().is_none();
                settled_since = settled_since.filter(|_| settled);
                if settled {
                    let since = *settled_since.get_or_insert(self.time.now);
                    if self.time.now - since > 16_000_000_000 {
                        break;
                    }
                }
            }
        }
        if !self.plan.clocks_are_wrong
            && let Some(what) = self.unsettled()
        {
            return Err(Violation(format!("INV-R5: {what}")));
        }
        self.report.rounds = self.ledger.rounds();
        self.report.reads = self.agents.iter().map(|agent| agent.reads).sum();
        self.report.tried = self.agents.iter().map(|agent| agent.tried).sum();
        self.report.won = self.agents.iter().map(|agent| agent.won).sum();
        self.report.events = self.time.count;
        self.report.elapsed = Duration::from_nanos(self.time.now);
        Ok(self.report)
    }

    fn unsettled(&self) -> Option<String> {
        unsettled(&self.agents, self.stored.as_deref(), &self.plan.settings)
    }

    pub(super) fn at(&mut self, time: u64, agent: usize, event: Event) {
        self.time.at(time, (agent, event));
    }

    fn happen(&mut self, number: usize, event: Event) -> Result<(), Violation> {
        let agent = &self.agents[number];
        let stalled = self.time.now < agent.stalled_until;
        match event {
            Event::Act(act) => {
                self.tell(number, || format!("{act:?}"));
                self.act(number, act)
            }
            Event::AtStore(process, asked, ask, blind) => {
                self.at_store(number, process, asked, ask, blind)
            }
            // A process that stands still finds everything later.
            event if stalled => {
                let until = agent.stalled_until;
                self.at(until, number, event);
                Ok(())
            }
            Event::Wake(process) => {
                let due = agent.deadline().is_some_and(|due| due <= self.time.now);
                if process == agent.process && due && agent.doing != Doing::Nothing {
                    self.step(number, Input::Tick)?;
                }
                Ok(())
            }
            Event::JoinAgain(process) => {
                if process == agent.process && agent.doing == Doing::Stopping {
                    self.agents[number].doing = Doing::Joining;
                    self.step(number, Input::Join)?;
                }
                Ok(())
            }
            Event::Notice(process, input) => {
                let reachable = self.time.now >= agent.cut_until;
                if process == agent.process && reachable && agent.doing != Doing::Nothing {
                    self.step(number, input)?;
                }
                Ok(())
            }
            Event::Answer(process, asked, answer) => self.answer(number, process, asked, answer),
            Event::GivenUp(process, asked) => {
                if process == agent.process && asked == agent.asked {
                    self.tell(number, || "asks again".into());
                    self.send(number, Ask::Read);
                }
                Ok(())
            }
        }
    }

    pub(super) fn tell(&self, number: usize, text: impl FnOnce() -> String) {
        self.time.log(&self.agents[number].me, text);
    }
}
