//! Turns: a bounded amount of work for each connection, in order.

use super::connection::Stage;
use super::{CloseReason, Output, ServerMachine, TURN_WORK};
use crate::wire::request::decode;
use rdzv_core::ident::ConnId;

impl ServerMachine {
    /// Gives a connection a turn.
    /// Executes requests, keeps the rest, and updates the account of its memory.
    pub(super) fn serve(&mut self, id: ConnId, input: &[u8]) {
        let Some(Some(connection)) = self.connections.get(id.0 as usize) else {
            return;
        };
        self.operations.act_for(&connection.account.meter);
        self.spent = 0;
        let served = self.serve_requests(id, input);
        let served = served.and_then(|()| self.account(id));
        self.turns += 1;
        self.longest_turn = self.longest_turn.max(self.spent);
        self.peak_memory = self.peak_memory.max(self.memory());
        match served {
            Ok(()) => self.flush(id),
            Err(reason) => self.close(id, reason),
        }
    }

    fn serve_requests(&mut self, id: ConnId, mut input: &[u8]) -> Result<(), CloseReason> {
        let limits = self.limits;
        loop {
            let purging = self.purging;
            let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
                return Ok(());
            };
            let is_full = connection.outgoing.unsent() > limits.max_unsent_bytes;
            let is_done = input.is_empty()
                && connection.unfinished.is_none()
                && !connection.assembler.has_landed();
            if !purging && (is_full || self.spent >= TURN_WORK && !is_done) {
                self.hold(id, input, is_full);
                return Ok(());
            }
            let unsent = connection.outgoing.copied();
            if purging && unsent > limits.max_unsent_bytes && !is_done {
                return Err(CloseReason::Unread { unsent });
            }
            if let Some(unfinished) = connection.unfinished.take() {
                self.step(id, unfinished)?;
            } else if is_done {
                self.resume(id);
                return Ok(());
            } else if connection.assembler.is_empty()
                && let Some((request, used)) = decode(input, &limits)?
            {
                input = &input[used..];
                self.spent += used;
                self.execute(id, request, used)?;
            } else {
                let before = input.len();
                let meter = &connection.account.meter;
                let assembled = connection.assembler.feed(&mut input, &limits, meter)?;
                self.spent += before - input.len();
                if let Some(assembled) = assembled {
                    self.execute(id, assembled.request(&limits), assembled.small_bytes())?;
                }
            }
        }
    }

    /// Keeps input for the next turn.
    /// A connection with too many unsent replies waits until enough of them are sent.
    fn hold(&mut self, id: ConnId, input: &[u8], waits_for_replies: bool) {
        let Some(connection) = self.connection(id) else {
            return;
        };
        connection.held.extend_from_slice(input);
        if !connection.paused {
            connection.paused = true;
            self.outbox.push(Output::PauseReading(id));
        }
        if !waits_for_replies {
            self.queue(id);
        }
    }

    /// Resumes reading after all held input has been executed.
    fn resume(&mut self, id: ConnId) {
        if let Some(connection) = self.connection(id)
            && connection.paused
        {
            connection.paused = false;
            self.outbox.push(Output::ResumeReading(id));
        }
    }

    pub(super) fn queue(&mut self, id: ConnId) {
        if let Some(connection) = self.connection(id)
            && !connection.queued
        {
            connection.queued = true;
            let serial = connection.serial;
            self.ready.push_back((id, serial));
            self.want_turn();
        }
    }

    pub(super) fn want_turn(&mut self) {
        if !self.yielded {
            self.yielded = true;
            self.outbox.push(Output::Yield);
        }
    }

    /// Serves each connection that waits for its turn once.
    pub(super) fn next_turns(&mut self) {
        self.yielded = false;
        if self.operations.sweep() {
            self.want_turn();
        }
        for _ in 0..self.ready.len() {
            let Some((id, serial)) = self.ready.pop_front() else {
                return;
            };
            let Some(connection) = self.connection(id) else {
                continue;
            };
            if connection.serial == serial && connection.queued {
                connection.queued = false;
                if connection.stage == Stage::Serving {
                    let held = std::mem::take(&mut connection.held);
                    self.serve(id, &held);
                }
            }
        }
    }
}
