//! The acts of the plan, done to agents: they start, end, and are held up.

use std::time::Duration;

use super::agent::{Doing, Input};
use super::plan::Act;
use super::world::{Event, World};
use crate::Violation;
use crate::scheduler::nanos;

impl World {
    pub(super) fn act(&mut self, agent: usize, act: Act) -> Result<(), Violation> {
        self.note(agent, || format!("{act:?}"));
        let until = |time: Duration| self.time.now + nanos(time);
        match act {
            Act::Start => {
                self.agents[agent].wanted = true;
                if self.agents[agent].machine.is_none() {
                    return self.start(agent);
                }
                // It had left, or had been told that the run is over.
                if self.agents[agent].doing == Doing::Nothing {
                    self.crash(agent, false);
                    self.agents[agent].wanted = true;
                    return self.start(agent);
                }
            }
            Act::Restart => {
                if matches!(self.agents[agent].doing, Doing::Working(_)) {
                    self.agents[agent].doing = Doing::Joining;
                    return self.tell(agent, Input::Join);
                }
            }
            Act::Leave | Act::Close => {
                if self.agents[agent].doing == Doing::Nothing {
                    return Ok(());
                }
                if self.agents[agent].stalled_until > self.time.now {
                    let until = self.agents[agent].stalled_until;
                    self.time.at(until, Event::Act(agent, act));
                    return Ok(());
                }
                self.agents[agent].doing = Doing::Nothing;
                self.agents[agent].wanted = false;
                let input = if act == Act::Close {
                    Input::Close
                } else {
                    Input::Leave
                };
                return self.tell(agent, input);
            }
            Act::Crash => self.crash(agent, false),
            Act::Vanish => self.crash(agent, true),
            Act::Stall(time) => self.agents[agent].stalled_until = until(time),
            Act::Cut(time) => {
                self.agents[agent].cut_until = until(time);
                if let Some(link) = self.agents[agent].connection
                    && let Some(link) = self.links.get_mut(&link)
                {
                    link.cut = true;
                }
            }
            Act::Reset => {
                if let Some(link) = self.agents[agent].connection {
                    self.end_link(link, true, true);
                }
            }
            Act::HostStalls(time) => self.host_stalled_until = until(time),
        }
        Ok(())
    }

    pub(super) fn start(&mut self, agent: usize) -> Result<(), Violation> {
        if self.agents[agent].cut_until > self.time.now {
            let process = self.agents[agent].process;
            let until = self.agents[agent].cut_until;
            self.time.at(until, Event::StartAgain(agent, process));
            return Ok(());
        }
        let seed = self.time.random.u64(..);
        let settings = self.plan.settings;
        let now = self.time.clocks(0);
        self.agents[agent].start(now, settings, seed);
        if !self.agents[agent].is_stock() {
            self.connect(agent);
        }
        self.tell(agent, Input::Join)
    }

    /// The process of an agent ends; `silently` if its machine ends with it.
    pub(super) fn crash(&mut self, agent: usize, silently: bool) {
        self.agents[agent].stop();
        self.agents[agent].wanted = false;
        if let Some(link) = self.agents[agent].connection.take() {
            match self.links.get_mut(&link) {
                Some(link) if silently => link.cut = true,
                _ => self.end_link(link, true, false),
            }
        }
    }
}
