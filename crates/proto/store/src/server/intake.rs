//! What comes in: validation, cutting the stream into requests, pausing, and the purge's last look.

use super::connection::{Stage, validate};
use super::{CloseReason, Output, ServerMachine, close};
use crate::wire::decode::decode;
use rdzv_core::ident::ConnId;
use rdzv_core::time::Now;

impl ServerMachine {
    pub(super) fn receive(&mut self, id: ConnId, mut input: &[u8]) {
        let purging = self.purging;
        let Some(connection) = self.connection(id) else {
            return;
        };
        match connection.stage {
            Stage::Serving if !connection.paused || purging => {}
            Stage::Serving => return connection.held.extend_from_slice(input),
            Stage::Closing => return,
            Stage::Validating(matched) => match validate(matched, input) {
                Ok((used, stage)) => {
                    connection.stage = stage;
                    input = &input[used..];
                    self.forget_validated();
                }
                Err(first) => {
                    let looks_like = close::looks_like(&first);
                    return self.close(id, CloseReason::NotAStoreClient { first, looks_like });
                }
            },
        }
        self.serve(id, input);
    }

    /// Carries out what is complete, keeps the rest, and settles the accounts of the turn.
    fn serve(&mut self, id: ConnId, input: &[u8]) {
        if let Err(reason) = self
            .serve_requests(id, input)
            .and_then(|()| self.account(id))
        {
            self.close(id, reason);
            return;
        }
        self.flush(id);
    }

    fn serve_requests(&mut self, id: ConnId, mut input: &[u8]) -> Result<(), CloseReason> {
        let limits = self.limits;
        let bound = match self.purging {
            true => usize::MAX,
            false => limits.max_unsent_bytes,
        };
        loop {
            let meter = self.operations.keyspace().meter();
            let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
                return Ok(());
            };
            if connection.outgoing.unsent() > bound {
                connection.held.extend_from_slice(input);
                if !connection.paused {
                    connection.paused = true;
                    self.outbox.push(Output::PauseReading(id));
                }
                return Ok(());
            }
            if connection.assembler.is_empty() {
                if input.is_empty() {
                    return Ok(());
                }
                if let Some((request, used)) = decode(input, &limits)? {
                    input = &input[used..];
                    self.execute(id, request, used)?;
                    continue;
                }
            }
            let Some(assembled) = connection.assembler.feed(&mut input, &limits, meter)? else {
                return Ok(());
            };
            self.execute(id, assembled.request(&limits), assembled.small_bytes())?;
        }
    }

    pub(super) fn landed(&mut self, id: ConnId) {
        if let Some(connection) = self.connection(id)
            && connection.stage == Stage::Serving
        {
            let overshoot = connection.assembler.overshoot();
            self.serve(id, &overshoot);
        }
    }

    pub(super) fn sent(&mut self, id: ConnId, count: usize) {
        let resume_below = self.limits.max_unsent_bytes / 2;
        let Some(connection) = self.connection(id) else {
            return;
        };
        connection.outgoing.advance(count);
        if connection.paused
            && connection.stage == Stage::Serving
            && connection.outgoing.unsent() <= resume_below
        {
            connection.paused = false;
            let held = std::mem::take(&mut connection.held);
            // A pause that the held requests bring on again must reach the shell after this.
            self.outbox.push(Output::ResumeReading(id));
            self.serve(id, &held);
        } else {
            // Sending only ever frees memory.
            let _ = self.account(id);
        }
    }

    pub(super) fn prepare_purge(&mut self) {
        self.purging = true;
        for index in 0..self.connections.len() {
            let id = ConnId(index as u32);
            if let Some(connection) = self.connection(id)
                && connection.stage == Stage::Serving
                && !connection.held.is_empty()
            {
                let held = std::mem::take(&mut connection.held);
                self.serve(id, &held);
            }
        }
    }

    /// Drops the head of the queue of unvalidated connections as far as it is out of date.
    pub(super) fn forget_validated(&mut self) {
        while let Some((_, id, serial)) = self.unvalidated.front() {
            let connection = self.connections.get(id.0 as usize);
            match connection.and_then(Option::as_ref) {
                Some(connection)
                    if connection.serial == *serial
                        && matches!(connection.stage, Stage::Validating(_)) =>
                {
                    return;
                }
                _ => self.unvalidated.pop_front(),
            };
        }
    }

    pub(super) fn close_unvalidated(&mut self, now: Now) {
        self.forget_validated();
        while let Some(&(deadline, id, _)) = self.unvalidated.front()
            && deadline <= now.mono
        {
            self.close(id, CloseReason::Silent(self.limits.validation_timeout));
            self.forget_validated();
        }
    }
}
