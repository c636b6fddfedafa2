//! The store and the coordinator in it: their inputs and outputs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_rendezvous_proto::coordinator::wire::{AgentRefusal, Event as Announcement};
use rdzv_rendezvous_proto::coordinator::{Coordinator, Note};
use rdzv_rendezvous_proto::{codec, coordinator, participant};
use rdzv_store_proto::wire::request::rendezvous as opcode;

use super::agent::{Agent, Doing, Input};
use super::plan::Medium;
use super::world::{Answer, Ask, Event, Piece, Question, Within, World, origin};
use crate::scheduler::{due, nanos};
use crate::{Result, broken};

const STATE: &[u8] = b"/torch.rendezvous.run";

/// Time after which an agent stops waiting for an answer.
const GIVEN_UP: Duration = Duration::from_secs(2);

impl World {
    pub(super) fn wake_host(&mut self) -> Result {
        self.host_wakes = None;
        if self.host_stall_end > self.time.now {
            // Like the real server, the coordinator reads waiting input before it checks the time.
            let end = self.host_stall_end + 1;
            self.host_wakes = Some(end);
            self.time.at(end, Event::HostWakes);
            return Ok(());
        }
        if self.host_due().is_some_and(|due| due <= self.time.now) {
            return self.tell_host(coordinator::Input::Tick);
        }
        self.schedule_host();
        Ok(())
    }

    /// Passes an input to the coordinator, and applies its outputs.
    pub(super) fn tell_host(&mut self, input: coordinator::Input<'_>) -> Result {
        let now = self.time.clocks(0);
        let Some(host) = &mut self.host else {
            return Ok(());
        };
        self.time.log("host", || format!("◄ {input:?}"));
        match &input {
            coordinator::Input::Request { from, opcode, .. } => {
                let node = self.links.get(&from.0).map(|link| link.node.clone());
                match (*opcode, node) {
                    (opcode::JOIN, Some(node)) => self.ledger.asks(from.0, node),
                    (opcode::LEAVE, _) => self.ledger.leaves(from.0),
                    _ => {}
                }
            }
            coordinator::Input::Closed(id) => self.ledger.leaves(id.0),
            _ => {}
        }
        host.handle(now, input);
        let mut looks = VecDeque::new();
        let mut ended = VecDeque::new();
        loop {
            while let Some(output) = self.host.as_mut().and_then(Coordinator::poll_output) {
                self.apply_output(output, &mut looks, &mut ended)?;
                if let Some(left) = &mut self.host_dies_after {
                    *left -= 1;
                    if *left == 0 {
                        self.kill_host(false);
                        return Ok(());
                    }
                }
            }
            let Some(host) = &mut self.host else {
                break;
            };
            if let Some(key) = looks.pop_front() {
                let value = self.keys.get(&key).map(Vec::as_slice);
                host.handle(now, coordinator::Input::Found { key: &key, value });
            } else if let Some(id) = ended.pop_front() {
                host.handle(now, coordinator::Input::Closed(ConnId(id)));
            } else {
                break;
            }
        }
        self.schedule_host();
        if self.plan.medium != Medium::Store && !self.plan.torchrun.contains(&true) {
            self.ledger
                .spares(self.plan.medium == Medium::Restartable)?;
        }
        Ok(())
    }

    /// Kills the coordinator.
    ///
    /// The next one starts a little later; until then the kernel queues connections.
    pub(super) fn kill_host(&mut self, note_is_lost: bool) {
        if self.note.is_none() {
            return;
        }
        self.time.log("host", || "is killed".to_owned());
        self.host_dies_after = None;
        self.host_stall_end = self.time.now + self.time.random.u64(1_000_000..600_000_000);
        if self.plan.hosted && self.agents[0].doing != Doing::Nothing {
            self.kill_agent(0, Some(self.host_stall_end));
            if note_is_lost {
                self.agents[0].predecessors.clear();
            }
        }
        self.is_unnoted |= note_is_lost;
        self.ledger.coordinator_died(note_is_lost);
        let cluster = self.time.random.u64(..);
        let Some(note) = &mut self.note else {
            return;
        };
        if note_is_lost {
            *note = Note::new(cluster, note.authority.timeout);
        } else {
            note.authority.epoch += 1;
        }
        let host = self.plan.hosted.then(|| self.agents[0].instance);
        let origin = origin(host, self.recovers, self.moves, self.plan.rules);
        let began = self.time.clocks(0);
        self.host = Some(Coordinator::restartable(began, note.clone(), origin));
        self.keys.clear();
        let links: Vec<u32> = self.links.keys().copied().collect();
        for id in links {
            if let Some(link) = self.links.get_mut(&id)
                && std::mem::replace(&mut link.at_host, false)
            {
                self.send(id, false, Piece::End);
            }
        }
        self.schedule_host();
    }

    pub(super) fn apply_output(
        &mut self,
        output: coordinator::Output,
        looks: &mut VecDeque<Vec<u8>>,
        ended: &mut VecDeque<u32>,
    ) -> Result {
        match output {
            coordinator::Output::LastCall { call, .. } => {
                self.time.log("host", || call.to_string());
            }
            coordinator::Output::LastSpare { round, .. } => {
                self.time
                    .log("host", || format!("has no spare in round {round}"));
            }
            coordinator::Output::Recovering { recovering, .. } => {
                self.time.log("host", || recovering.to_string());
            }
            coordinator::Output::Note { run, note } => {
                self.time.log("host", || format!("notes {note:?}"));
                if let Some(note) = &note
                    && !note.members.is_empty()
                    && std::mem::take(&mut self.is_unnoted)
                    && self.ledger.highest() >= Some(note.round)
                    && !self.is_known()
                {
                    // No agent can have reported an earlier round to this coordinator: this is
                    // another run.
                    self.ledger.forget();
                    self.end_history()?;
                }
                if let Some(kept) = &mut self.note {
                    if let Some(note) = &note {
                        self.ledger.recorded(note);
                    }
                    kept.update(run, note);
                }
            }
            coordinator::Output::Adopt(authority) => {
                self.time.log("host", || format!("is {authority:?}"));
                if let Some(kept) = &mut self.note {
                    kept.adopt(authority);
                }
            }
            coordinator::Output::Confirm(_) => {}
            coordinator::Output::Read(key) => looks.push_back(key),
            coordinator::Output::Store { key, value } => self.put(key, Some(value)),
            coordinator::Output::Remove(key) => self.put(key, None),
            coordinator::Output::Close(ConnId(id), why) => {
                self.time.log("host", || format!("closes {id}: {why}"));
                if let Some(link) = self.links.get_mut(&id) {
                    link.at_host = false;
                }
                self.ledger.leaves(id);
                self.send(id, false, Piece::End);
                ended.push_back(id);
            }
            coordinator::Output::Send(ConnId(id), event) => {
                if let Some(link) = self.links.get(&id) {
                    let node = link.node.clone();
                    self.time.log("host", || format!("► {node} {event:?}"));
                    self.ledger.announced(&node, &event)?;
                    if !matches!(event, Announcement::Alive(_) | Announcement::Status { .. }) {
                        self.ledger.pending.remove(&id);
                    }
                    if let Announcement::AllSucceeded { round } = event
                        && self.ledger.ends_of_rounds.contains(&round)
                    {
                        // Agents that were notified before the last report that the round is over
                        // leave, because they have succeeded. The others are notified that all have
                        // succeeded. No order of both is right.
                        self.end_history()?;
                    }
                    self.is_most_of_it(&event)?;
                    if let Announcement::Refused(AgentRefusal::Unusable(why)) = &event {
                        return broken(format!("{node} is refused: {why}"));
                    }
                    let mut bytes = Vec::new();
                    event.write(&mut bytes);
                    self.send(id, false, Piece::Bytes(bytes));
                }
            }
        }
        Ok(())
    }

    /// `true` if an agent that was in a round can report it to the coordinator.
    fn is_known(&self) -> bool {
        let knows = |agent: &Agent| agent.knows && agent.doing != Doing::Nothing;
        if !self.plan.has_silence() {
            return self.agents.iter().any(knows);
        }
        self.links.values().any(|link| {
            let agent = &self.agents[link.agent];
            link.at_host && link.process == agent.process && knows(agent)
        })
    }

    /// Fails if a round is over because at least half of its nodes are missing.
    ///
    /// This concerns nodes that did not reattach to a coordinator that restarted without `recover`.
    fn is_most_of_it(&self, event: &Announcement) -> Result {
        let Announcement::Membership { round, reason, .. } = event else {
            return Ok(());
        };
        let Some((numbers, _)) =
            reason.split_once(" nodes did not reattach to the new coordinator")
        else {
            return Ok(());
        };
        let mut numbers = numbers.split(" of ").map(str::parse::<u64>);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(missing)), Some(Ok(size))) if missing * 2 < size || self.recovers => Ok(()),
            _ => broken(format!("INV-N4: round {round} is over, because {reason}")),
        }
    }

    pub(super) fn ask(&mut self, agent: usize, ask: Ask) {
        let it = &mut self.agents[agent];
        it.asked += 1;
        let question = Question {
            agent,
            process: it.process,
            number: it.asked,
        };
        let is_cut = self.time.now < it.cut_end;
        if is_cut || self.is_lost() {
            self.give_up(question);
            // Sometimes the question arrives late, when the agent no longer expects it.
            if self.time.random.bool() {
                return;
            }
            let late = self.time.now + self.time.random.u64(0..2 * nanos(GIVEN_UP));
            let late = late.max(self.agents[agent].cut_end);
            return self.time.at(late, Event::Asked(question, ask, true));
        }
        let arrives = self.time.now + self.latency();
        self.time.at(arrives, Event::Asked(question, ask, false));
    }

    fn give_up(&mut self, question: Question) {
        self.time.after(nanos(GIVEN_UP), Event::GivenUp(question));
    }

    /// `true` if the next message is lost. Faults end with the plan.
    fn is_lost(&mut self) -> bool {
        self.plan.loses_one_of > 0
            && self.time.now <= nanos(self.plan.end)
            && self.time.random.u32(0..self.plan.loses_one_of) == 0
    }

    /// Handles a question that arrives at the store.
    ///
    /// `is_late`: the agent no longer waits for the answer.
    pub(super) fn asked(&mut self, question: Question, ask: Ask, is_late: bool) -> Result {
        if self.host_stall_end > self.time.now {
            self.time
                .at(self.host_stall_end, Event::Asked(question, ask, is_late));
            return Ok(());
        }
        let writes = matches!(ask, Ask::Write(..));
        self.tell_host(coordinator::Input::Touching { key: STATE, writes })?;
        let mut won = false;
        if let Ask::Write(state, expected) = ask {
            won = expected == self.version;
            if won {
                self.report.won += 1;
                if self.host.is_none() {
                    let old = self.state.as_deref().cloned().unwrap_or_default();
                    self.ledger.wrote(&old, &state)?;
                }
                self.ledger.closed |= state.closed;
                self.put(STATE.to_vec(), Some(codec::to_value(&state)));
            }
            self.stored(STATE)?;
        }
        let is_cut = self.time.now < self.agents[question.agent].cut_end;
        if is_late {
            return Ok(());
        }
        if is_cut || self.is_lost() {
            self.give_up(question);
            return Ok(());
        }
        let answer = Answer {
            version: self.version,
            state: self.state.clone(),
            won,
        };
        let arrives = self.time.now + self.latency();
        self.time.at(arrives, Event::Answered(question, answer));
        Ok(())
    }

    pub(super) fn answered(&mut self, question: Question, answer: Answer) -> Result {
        if !self.is_open(question) {
            return Ok(());
        }
        let agent = &mut self.agents[question.agent];
        agent.version = answer.version;
        // The agent ignores all messages that are on their way now.
        agent.asked += 1;
        let state = answer.state.map(Arc::unwrap_or_clone);
        // A read follows a write whose answer was lost; the agent then counts the write as not won.
        let input = if std::mem::take(&mut agent.writing) {
            participant::Input::Written {
                state,
                won: answer.won,
            }
        } else {
            participant::Input::Read(state)
        };
        self.tell(question.agent, Input::Stock(input))
    }

    /// `true` if an agent still waits for the answer.
    pub(super) fn is_open(&self, question: Question) -> bool {
        let agent = &self.agents[question.agent];
        (agent.process, agent.asked) == (question.process, question.number)
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        if key == STATE && self.keys.get(STATE) != value.as_ref() {
            self.version += 1;
            let state = value
                .as_ref()
                .map(|value| codec::from_value(value).ok().flatten());
            self.state = state.flatten().map(Arc::new);
            if self.plan.notifies {
                self.notify();
            }
        }
        match value {
            Some(value) => drop(self.keys.insert(key, value)),
            None => drop(self.keys.remove(&key)),
        }
    }

    /// Notifies every agent, the writer too, that the state was written.
    fn notify(&mut self) {
        for agent in 0..self.agents.len() {
            let late = self.latency();
            self.later(agent, late, Within::Notice(participant::Input::Changed));
        }
    }

    pub(super) fn stored(&mut self, key: &[u8]) -> Result {
        let value = self.keys.get(key).cloned();
        let value = value.as_deref();
        self.tell_host(coordinator::Input::Stored { key, value })
    }

    pub(super) fn schedule_host(&mut self) {
        let due = self.host_due();
        self.time.wake(&mut self.host_wakes, due, Event::HostWakes);
    }

    pub(super) fn host_due(&self) -> Option<u64> {
        due(self.host.as_ref()?.deadline())
    }
}
