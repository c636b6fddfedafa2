//! The acts of the plan, done to agents: they start, end, are held up, and have wrong clocks.

use std::time::Duration;

use rdzv_rendezvous_proto::participant::Input;

use super::agent::Doing;
use super::plan::Act;
use super::world::{Event, World};
use crate::Violation;
use crate::scheduler::nanos;

impl World {
    pub(super) fn act(&mut self, number: usize, act: Act) -> Result<(), Violation> {
        let running = self.agents[number].doing != Doing::Nothing;
        match act {
            Act::Start if !running => {
                let poll = (!self.plan.notifies).then_some(Duration::from_secs(1));
                let seed = self.time.random.u64(..);
                let now = self.time.clocks(self.agents[number].skew);
                let agent = &mut self.agents[number];
                let actions = agent.start(now, self.plan.settings, poll, seed);
                return self.grant(number, actions);
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
                self.agents[number].stalled_until = self.time.now + nanos(duration);
                self.fault_until(self.agents[number].stalled_until);
            }
            Act::Cut(duration) => {
                self.agents[number].cut_until = self.time.now + nanos(duration);
                self.fault_until(self.agents[number].cut_until);
                // What the store notices need not be true.
                if self.plan.notices_dead && duration > Duration::from_secs(10) && running {
                    self.notice_dead(number);
                }
            }
            Act::ClockJump(seconds) => {
                self.agents[number].skew += (seconds * 1e6) as i64;
                self.fault_until(self.time.now);
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
                let at = self.time.now + self.time.random.u64(0..3_000_000_000);
                let process = self.agents[other].process;
                let input = Input::Gone(vec![dead.clone()]);
                self.at(at, other, Event::Notice(process, input));
            }
        }
    }
}
