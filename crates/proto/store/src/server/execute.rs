//! Executing one request: operation, wake-ups, reply.

use super::{CloseReason, ServerMachine};
use crate::keyspace::{ENTRY_OVERHEAD, Held, NotANumber};
use crate::ops::Compared;
use crate::wire::fields::Keys;
use crate::wire::reply::{self, CheckReply, STOP_WAITING, WAIT_CANCELED};
use crate::wire::request::Request;
use rdzv_core::ident::ConnId;

impl ServerMachine {
    /// Executes a request that took `size` bytes on the wire.
    ///
    /// Woken connections are answered before the request itself is, so that a connection that
    /// fulfils its own wait gets its replies in the order of its requests.
    #[inline]
    pub(super) fn execute(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        size: usize,
    ) -> Result<(), CloseReason> {
        self.requests += 1;
        let promise = self.operations.take_promise(id);
        let result = match self.watching {
            false => self.perform(id, request, size),
            true => self.perform_shown(id, request, size),
        };
        if let Some(promise) = promise {
            self.operations.release(promise);
            self.wake();
        }
        result
    }

    /// Like [`ServerMachine::perform`], with the extension looking on.
    #[cold]
    fn perform_shown(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        size: usize,
    ) -> Result<(), CloseReason> {
        self.show_before(&request);
        let result = self.perform(id, request.clone(), size);
        self.show_after(&request);
        result
    }

    fn perform(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        size: usize,
    ) -> Result<(), CloseReason> {
        match request {
            Request::Validate { .. } => return Err(CloseReason::ValidatedTwice),
            Request::Ping { nonce } => {
                let answer = match self.extension.as_ref().map(|extension| extension.probe()) {
                    Some((probe, answer)) if probe == nonce => answer,
                    _ => nonce,
                };
                self.small(id).extend_from_slice(&answer.to_le_bytes());
            }
            Request::Set { key, value } => {
                self.admit(key, size)?;
                self.operations.set(key, value);
                self.wake();
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => {
                self.admit(key, size)?;
                let compared = self.operations.compare_set(key, expected.as_ref(), desired);
                let stored = matches!(compared, Compared::Held(_));
                self.wake();
                if stored {
                    self.reply_value(id, key);
                } else {
                    reply::bytes(self.small(id), expected.as_ref());
                }
            }
            Request::Get { key } => self.reply_value(id, key),
            Request::Add { key, delta } => {
                self.admit(key, size)?;
                let added = self.operations.add(key, delta);
                let sum = added.map_err(|NotANumber| self.not_a_number("ADD", key))?;
                self.wake();
                reply::number(self.small(id), sum);
            }
            Request::Check { keys } => {
                let ready = match self.operations.check(keys) {
                    true => CheckReply::Ready,
                    false => CheckReply::NotReady,
                };
                self.small(id).push(ready as u8);
            }
            Request::Wait { keys } => {
                self.make_room(size + 2 * ENTRY_OVERHEAD * keys.len())?;
                if self.operations.wait(id, keys) {
                    self.small(id).push(STOP_WAITING);
                }
            }
            Request::GetNumKeys {} => self.reply_count(id, self.operations.keyspace().len()),
            Request::DeleteKey { key } => {
                let deleted = self.operations.delete_key(key);
                self.reply_count(id, usize::from(deleted));
            }
            Request::Append { key, value } => {
                // A growing value may be moved to a place of twice its size.
                let held = self.operations.keyspace().peek(key).map_or(0, <[u8]>::len);
                self.admit(key, size + held)?;
                self.operations.append(key, value);
                self.wake();
            }
            Request::MultiGet { keys } => return self.multi_get(id, keys),
            Request::MultiSet { pairs } => {
                let new = pairs
                    .clone()
                    .filter(|(key, _)| !self.operations.keyspace().contains(key));
                let new = new.count();
                self.make_room_for_keys(new)?;
                self.make_room(size + new * ENTRY_OVERHEAD)?;
                self.operations.multi_set(pairs);
                self.wake();
            }
            Request::CancelWait {} => {
                self.operations.cancel_wait(id);
                self.small(id).push(WAIT_CANCELED);
            }
            Request::QueuePush { key, value } => {
                if self.operations.keyspace().queue_len(key) == 0 {
                    self.make_room_for_keys(1)?;
                }
                self.make_room(size + 2 * ENTRY_OVERHEAD)?;
                self.operations.queue_push(key, value);
                self.wake();
            }
            Request::QueuePop { key } => {
                let (length, value) = self.operations.queue_pop(key);
                self.reply_count(id, length);
                if let Some(value) = value {
                    self.outgoing(id).push_owned(value);
                }
            }
            Request::QueueLen { key } => {
                self.reply_count(id, self.operations.keyspace().queue_len(key));
            }
            Request::ListKeys {} => self.list_keys(id)?,
            Request::Extension { opcode, payload } => {
                self.extend(|extension, now, reach| {
                    extension.request(now, id, opcode, payload, reach);
                });
            }
            Request::Barrier { key, world_size } => {
                self.admit(key, size + 2 * ENTRY_OVERHEAD)?;
                let complete = self.operations.barrier(id, key, world_size);
                let complete = complete.map_err(|NotANumber| self.not_a_number("BARRIER", key))?;
                self.wake();
                if complete {
                    self.small(id).push(STOP_WAITING);
                }
            }
        }
        Ok(())
    }

    /// Answers everyone whose wait is over.
    #[inline]
    pub(super) fn wake(&mut self) {
        if !self.operations.has_woken() {
            return;
        }
        for id in self.operations.woken() {
            if let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) {
                connection.outgoing.small().push(STOP_WAITING);
                if !connection.flushing {
                    connection.flushing = true;
                    self.outbox.push(super::Output::Flush(id));
                }
            }
        }
    }

    fn reply_count(&mut self, id: ConnId, count: usize) {
        reply::number(self.small(id), count as i64);
    }

    fn reply_value(&mut self, id: ConnId, key: &[u8]) {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return;
        };
        let value = self.operations.get(key).unwrap_or(Held::Small(&[]));
        connection.outgoing.push_value(value);
    }

    fn multi_get(&mut self, id: ConnId, keys: Keys<'_>) -> Result<(), CloseReason> {
        for key in keys {
            self.reply_value(id, key);
            let pending = self.outgoing(id).memory();
            if pending > self.limits.max_unsent_bytes {
                self.make_room(pending)?;
            }
        }
        Ok(())
    }

    fn list_keys(&mut self, id: ConnId) -> Result<(), CloseReason> {
        let count = self.operations.keyspace().len();
        self.make_room(8 + 8 * count + self.operations.keyspace().key_bytes())?;
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return Ok(());
        };
        let out = connection.outgoing.small();
        reply::number(out, count as i64);
        for key in self.operations.keyspace().keys() {
            reply::bytes(out, key);
        }
        Ok(())
    }

    /// Checks that a request which may create `key` and takes `size` bytes may be executed.
    #[inline]
    fn admit(&self, key: &[u8], size: usize) -> Result<(), CloseReason> {
        let keyspace = self.operations.keyspace();
        if keyspace.len() + keyspace.queue_count() >= self.limits.max_keys
            && !keyspace.contains(key)
        {
            return Err(CloseReason::TooManyKeys {
                limit: self.limits.max_keys,
            });
        }
        self.make_room(size + ENTRY_OVERHEAD)
    }

    fn make_room_for_keys(&self, new: usize) -> Result<(), CloseReason> {
        let keyspace = self.operations.keyspace();
        if keyspace.len() + keyspace.queue_count() + new > self.limits.max_keys {
            return Err(CloseReason::TooManyKeys {
                limit: self.limits.max_keys,
            });
        }
        Ok(())
    }

    fn not_a_number(&self, operation: &'static str, key: &[u8]) -> CloseReason {
        let shown =
            |bytes: &[u8]| String::from_utf8_lossy(&bytes[..bytes.len().min(80)]).into_owned();
        let value = self.operations.keyspace().peek(key).unwrap_or_default();
        CloseReason::NotANumber {
            operation,
            key: shown(key),
            value: shown(value),
        }
    }
}
