//! Clients that count.
//!
//! Each runs one operation at a time, and repeats it until it is answered.

use rdzv_consensus::Input;

use super::client::{Answer, Current};
use super::counters::Addition;
use super::process::Proposal;
use super::world::{Event, World};
use crate::history::{Operation, counter};
use crate::scheduler::nanos;
use crate::{Result, broken};

impl World {
    /// Starts an operation of a client, or repeats it.
    pub(super) fn client_wakes(&mut self, number: usize, sequence: u64) {
        let slots = self.slots.len();
        let now = self.time.now;
        if self.clients[number].sequence != sequence {
            return;
        }
        let random = self.time.random.u64(..);
        // A client that never waits for a commit stays with a leader that no longer leads.
        let only_reads = number == 1;
        let client = &mut self.clients[number];
        let current = match client.current {
            Some(current) => {
                // The client asks in turn. A random choice might miss the only leader for a very
                // long time. A removed member names a previous leader forever, so its hint does not
                // count for the turn.
                client.turn = (client.turn + 1) % slots;
                client.slot = client.turn;
                current
            }
            None if self.clients_end => return,
            None => {
                client.sequence += 1;
                let current = Current {
                    adds: !random.is_multiple_of(3) && !only_reads,
                    key: (random >> 8) % self.plan.keys,
                    called: now,
                };
                client.current = Some(current);
                current
            }
        };
        self.ask(number, current);
        let client = &self.clients[number];
        let again = now + 200_000_000 + random % 600_000_000;
        let event = Event::Client(number, client.sequence);
        self.time.at(again, event);
    }

    fn ask(&mut self, number: usize, current: Current) {
        let client = &self.clients[number];
        let sequence = client.sequence;
        if let Some(process) = self.slots[client.slot] {
            let event = Event::Asked(process, number, sequence, current);
            let late = self.client_latency();
            self.time.after(late, event);
        }
    }

    pub(super) fn asked(
        &mut self,
        number: usize,
        client: usize,
        sequence: u64,
        current: Current,
    ) -> Result {
        let now = self.time.now;
        let token = self.time.unique();
        let process = &mut self.processes[number];
        if !process.leads() {
            let leader = process.consensus.as_ref().and_then(|it| it.role().leader);
            let hint = leader.and_then(|leader| {
                let peers = process.peers.values().find(|peer| peer.id == leader);
                peers.map(|peer| peer.slot)
            });
            self.answer(client, sequence, Answer::Elsewhere(hint));
            return Ok(());
        }
        if !current.adds {
            process.reads.insert(token, (client, sequence, current.key));
            return self.handle(number, Input::Confirm(token));
        }
        let addition = Addition {
            client: client as u64,
            sequence,
            key: current.key,
        };
        let since = now;
        process
            .proposals
            .insert(token, Proposal { addition, since });
        self.propose(number, token, &addition.write())
    }

    pub(super) fn propose(&mut self, number: usize, token: u64, command: &[u8]) -> Result {
        let before = self.processes[number].last();
        self.proposing = before;
        let result = self.handle(number, Input::Propose { token, command });
        self.proposing = None;
        let process = &self.processes[number];
        if process.proposals.contains_key(&token) && process.last() == before {
            return broken(format!(
                "INV-Q7: {} neither begins command {token} nor drops it",
                process.id
            ));
        }
        result
    }

    pub(super) fn answer(&mut self, client: usize, sequence: u64, answer: Answer) {
        let late = self.client_latency();
        let event = Event::Answered(client, sequence, answer);
        self.time.after(late, event);
    }

    pub(super) fn answered(&mut self, number: usize, sequence: u64, answer: Answer) {
        let now = self.time.now;
        let pause = self.time.random.u64(0..=nanos(self.plan.pause));
        let client = &mut self.clients[number];
        let Some(current) = client.current.filter(|_| client.sequence == sequence) else {
            return;
        };
        match answer {
            Answer::Value(value) => {
                let operation = Operation {
                    call: if current.adds {
                        counter::Call::Add
                    } else {
                        counter::Call::Read
                    },
                    called: current.called,
                    answered: Some((now, value)),
                };
                client.history.push((current.key, operation));
                client.current = None;
                self.report.operations += 1;
                self.time.at(now + pause, Event::Client(number, sequence));
            }
            Answer::Elsewhere(Some(slot)) if slot != client.slot => {
                client.slot = slot;
                self.ask(number, current);
            }
            // The client asks another process after its timeout.
            Answer::Elsewhere(_) => {}
        }
    }
}
