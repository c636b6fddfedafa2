//! The coordinator and its keys: what reaches them, and what comes of it.

use std::collections::VecDeque;

use rdzv_core::ident::ConnId;
use rdzv_core::machine::Machine as _;
use rdzv_rendezvous_proto::codec;
use rdzv_rendezvous_proto::coordinator;
use rdzv_rendezvous_proto::coordinator::wire::{Event as Announcement, Refusal};

use super::world::{Ask, Event, World};
use crate::Violation;
use crate::scheduler::due;

const STATE: &[u8] = b"/torch.rendezvous.run";

impl World {
    pub(super) fn wake_host(&mut self) -> Result<(), Violation> {
        self.host_wakes = None;
        if self.host_stalled_until > self.time.now {
            // What waits to be read is read before time is looked at, as by the real server.
            let until = self.host_stalled_until + 1;
            self.host_wakes = Some(until);
            self.time.at(until, Event::HostWakes);
            return Ok(());
        }
        if self.host_due().is_some_and(|due| due <= self.time.now) {
            return self.tell_host(coordinator::Input::Tick);
        }
        self.schedule_host();
        Ok(())
    }

    /// Tells the coordinator something, and applies what it wants done.
    pub(super) fn tell_host(&mut self, input: coordinator::Input<'_>) -> Result<(), Violation> {
        self.note_host(|| format!("◄ {input:?}"));
        self.host.handle(self.time.clocks(0), input);
        let mut looks = VecDeque::new();
        let mut ended = VecDeque::new();
        loop {
            while let Some(output) = self.host.poll_output() {
                self.apply_output(output, &mut looks, &mut ended)?;
            }
            if let Some(key) = looks.pop_front() {
                let value: Option<Vec<u8>> = self.keys.get(&key).cloned();
                let value = value.as_deref();
                let found = coordinator::Input::Found { key: &key, value };
                self.host.handle(self.time.clocks(0), found);
            } else if let Some(id) = ended.pop_front() {
                self.host
                    .handle(self.time.clocks(0), coordinator::Input::Closed(ConnId(id)));
            } else {
                break;
            }
        }
        self.schedule_host();
        Ok(())
    }

    pub(super) fn apply_output(
        &mut self,
        output: coordinator::Output,
        looks: &mut VecDeque<Vec<u8>>,
        ended: &mut VecDeque<u32>,
    ) -> Result<(), Violation> {
        match output {
            coordinator::Output::LastCall { call, .. } => self.note_host(|| call.to_string()),
            coordinator::Output::Read(key) => looks.push_back(key),
            coordinator::Output::Store { key, value } => drop(self.keys.insert(key, value)),
            coordinator::Output::Remove(key) => drop(self.keys.remove(&key)),
            coordinator::Output::Close(ConnId(id), why) => {
                self.note_host(|| format!("closes {id}: {why}"));
                if let Some(link) = self.links.get_mut(&id) {
                    link.at_host = false;
                }
                self.end_link(id, false, true);
                ended.push_back(id);
            }
            coordinator::Output::Send(ConnId(id), event) => {
                if let Some(link) = self.links.get(&id) {
                    let node = link.node.clone();
                    self.note_host(|| format!("► {node} {event:?}"));
                    self.ledger.announced(&node, &event)?;
                    if let Announcement::Refused(Refusal::Unusable(why)) = &event {
                        return Err(Violation(format!("{node} is refused: {why}")));
                    }
                    let mut bytes = Vec::new();
                    event.write(&mut bytes);
                    self.send(id, false, Some(bytes));
                }
            }
        }
        Ok(())
    }

    /// A torchrun agent's question arrives.
    pub(super) fn asked(&mut self, agent: usize, process: u64, ask: Ask) -> Result<(), Violation> {
        if self.host_stalled_until > self.time.now {
            self.time
                .at(self.host_stalled_until, Event::Asked(agent, process, ask));
            return Ok(());
        }
        let won = match ask {
            Ask::Read => {
                let (key, writes) = (STATE, false);
                self.tell_host(coordinator::Input::Touching { key, writes })?;
                None
            }
            Ask::Write { state, expected } => {
                self.report.tried += 1;
                let (key, writes) = (STATE, true);
                self.tell_host(coordinator::Input::Touching { key, writes })?;
                let held = self.keys.get(STATE).map_or(&b""[..], |held| held);
                let won = held == expected;
                if won {
                    self.report.won += 1;
                    self.ledger.closed |= state.closed;
                    self.keys.insert(STATE.to_vec(), codec::to_value(&state));
                }
                self.stored(STATE)?;
                Some(won)
            }
            Ask::Set { key, value } => {
                self.keys.insert(key.clone(), value);
                return self.stored(&key);
            }
        };
        let value = self.keys.get(STATE).cloned().unwrap_or_default();
        let late = self.latency();
        let answered = Event::Answered(agent, process, value, won);
        self.time.at(self.time.now + late, answered);
        Ok(())
    }

    pub(super) fn stored(&mut self, key: &[u8]) -> Result<(), Violation> {
        let value = self.keys.get(key).cloned();
        let value = value.as_deref();
        self.tell_host(coordinator::Input::Stored { key, value })
    }

    pub(super) fn schedule_host(&mut self) {
        if let Some(due) = self.host_due() {
            let due = due.max(self.time.now);
            if self.host_wakes.is_none_or(|at| due < at) {
                self.host_wakes = Some(due);
                self.time.at(due, Event::HostWakes);
            }
        }
    }

    pub(super) fn host_due(&self) -> Option<u64> {
        due(self.host.deadline())
    }
}
