//! The network and the store: questions on their way, what becomes of them, and answers.

use std::sync::Arc;
use std::time::Duration;

use rdzv_rendezvous_proto::participant::Input;

use super::agent::{Ask, Doing};
use super::render::brief;
use super::world::{Answer, Event, World};
use crate::Violation;
use crate::scheduler::nanos;

/// When a message is given up that no answer has come to.
const GIVEN_UP: Duration = Duration::from_secs(2);

impl World {
    /// Sends a question on its way.
    pub(super) fn send(&mut self, number: usize, ask: Ask) {
        let agent = &mut self.agents[number];
        agent.asked += 1;
        let (process, asked) = (agent.process, agent.asked);
        let cut = self.time.now < agent.cut_until;
        let given_up = Event::GivenUp(process, asked);
        self.tell(number, || match &ask {
            Ask::Read => "asks".into(),
            Ask::Write(state, version) => format!("writes after {version}: {}", brief(state)),
        });
        if cut || self.is_lost() {
            self.at(self.time.now + nanos(GIVEN_UP), number, given_up);
            // Sometimes it arrives nevertheless, when nobody counts on it any more.
            if self.time.random.bool() {
                return;
            }
            let late = self.time.now + self.time.random.u64(0..2 * nanos(GIVEN_UP));
            let late = late.max(self.agents[number].cut_until);
            self.at(late, number, Event::AtStore(process, asked, ask, true));
            return;
        }
        let arrival = self.time.now + self.latency();
        self.at(arrival, number, Event::AtStore(process, asked, ask, false));
    }

    pub(super) fn at_store(
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
                self.notify();
            }
        }
        let agent = &self.agents[number];
        let lost = blind || self.time.now < agent.cut_until || self.is_lost();
        if lost && !blind {
            let event = Event::GivenUp(process, asked);
            self.at(self.time.now + nanos(GIVEN_UP), number, event);
        }
        if !lost {
            let answer = Answer {
                version: self.version,
                state: self.stored.clone(),
                won,
            };
            let arrival = self.time.now + self.latency();
            self.at(arrival, number, Event::Answer(process, asked, answer));
        }
        Ok(())
    }

    /// Tells everybody, the writer too, that something was written.
    fn notify(&mut self) {
        for other in 0..self.agents.len() {
            if self.agents[other].doing == Doing::Nothing {
                continue;
            }
            let arrival = self.time.now + self.latency();
            let process = self.agents[other].process;
            let input = Input::Changed;
            self.at(arrival, other, Event::Notice(process, input));
        }
    }

    pub(super) fn answer(
        &mut self,
        number: usize,
        process: u64,
        asked: u64,
        answer: Answer,
    ) -> Result<(), Violation> {
        let agent = &mut self.agents[number];
        if process != agent.process || asked != agent.asked || agent.doing == Doing::Nothing {
            return Ok(());
        }
        let Answer {
            version,
            state,
            won,
        } = answer;
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
        self.time.between(self.plan.latency)
    }

    /// Whether the next message is lost. Faults end when the plan does.
    fn is_lost(&mut self) -> bool {
        self.plan.loses_one_of > 0
            && self.time.now <= nanos(self.plan.end)
            && self.time.random.u32(0..self.plan.loses_one_of) == 0
    }
}
