//! Driver of the machine: passes bytes to it, and applies its outputs.

use std::collections::VecDeque;

use rdzv_core::machine::Machine as _;
use rdzv_store_proto::server::{Input, Output};

use super::{Event, World, id};

impl World {
    /// Passes bytes to the machine; large values may go directly to their buffer.
    pub(super) fn deliver(&mut self, client: usize, bytes: &[u8]) {
        let mut rest = bytes;
        if self.time.random.bool()
            && let Some(space) = self.machine.space(id(client))
        {
            let count = rest.len().min(space.capacity() - space.len());
            space.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            self.handle(Input::Landed(id(client)));
        }
        if !rest.is_empty() {
            self.handle(Input::Bytes(id(client), rest));
        }
    }

    pub(super) fn handle(&mut self, input: Input<'_>) {
        let now = self.time.clocks(0);
        self.machine.handle(now, input);
        self.apply_outputs();
    }

    pub(super) fn apply_outputs(&mut self) {
        let mut outputs = VecDeque::new();
        loop {
            outputs.extend(std::iter::from_fn(|| self.machine.poll_output()));
            let Some(output) = outputs.pop_front() else {
                return;
            };
            self.time.log("server", || format!("  ► {output:?}"));
            match output {
                Output::Flush(id) => self.flush(id.0 as usize),
                Output::Close(id, _) => {
                    self.lose(id.0 as usize);
                    let now = self.time.clocks(0);
                    self.machine.handle(now, Input::Closed(id));
                }
                Output::PauseReading(id) => self.pause(id.0 as usize, true),
                Output::ResumeReading(id) => self.pause(id.0 as usize, false),
                Output::Yield => {
                    let now = self.time.clocks(0);
                    self.machine.handle(now, Input::Turn);
                }
                Output::Joined(id, _) => unreachable!("{id:?} joined, and there are no agents"),
            }
        }
    }

    /// Sends as much as fits.
    pub(super) fn flush(&mut self, client: usize) {
        let (now, random) = (self.time.now, &mut self.time.random);
        let Some(link) = &mut self.links[client] else {
            return;
        };
        let generation = link.generation;
        let (mut bytes, mut room) = (Vec::new(), link.room());
        link.wants_room = false;
        for part in self.machine.unsent(id(client)) {
            let fits = part.len().min(room);
            bytes.extend_from_slice(&part[..fits]);
            room -= fits;
            link.wants_room |= fits < part.len();
        }
        if bytes.is_empty() {
            return;
        }
        let count = bytes.len();
        let time = link.to_client(now, count, random);
        self.time
            .at(time, Event::AtClient(client, generation, bytes));
        let now = self.time.clocks(0);
        self.machine.handle(now, Input::Sent(id(client), count));
    }

    fn pause(&mut self, client: usize, paused: bool) {
        let Some(link) = &mut self.links[client] else {
            return;
        };
        let generation = link.generation;
        link.paused = paused;
        self.report.pauses += u64::from(paused);
        if !paused {
            // The machine reads these bytes in order, before later ones.
            let unread: Vec<u8> = link.unread.drain(..).flatten().collect();
            if !unread.is_empty() {
                self.time
                    .at_once(Event::AtServer(client, generation, unread));
            }
        }
    }

    pub(super) fn lose(&mut self, client: usize) {
        if self.links[client].take().is_some() {
            self.clients[client].lost(&mut self.ledger);
            self.turn_soon(client);
        }
    }
}
