//! Executing one request: operation, wake-ups, reply.

use super::lists::{Listed, WHOLE};
use super::{CloseReason, KEY_WORK, REQUEST_WORK, ServerMachine, Unfinished};
use crate::keyspace::{ENTRY_OVERHEAD, NotANumber};
use crate::wire::fields::Body;
use crate::wire::reply::{self, CheckReply, STOP_WAITING, VALUE_FOLLOWS, WAIT_CANCELED};
use crate::wire::request::{Access, NATIVE_ANSWER, NATIVE_PROBE, Request};
use rdzv_core::ident::ConnId;

impl ServerMachine {
    /// Executes a request.
    ///
    /// `size` is the number of its bytes, without bodies in their own buffers.
    /// Connections that the operation wakes are answered before the request itself. A connection
    /// whose request ends its own wait therefore receives its replies in the order of its requests.
    #[inline]
    pub(super) fn execute(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        size: usize,
    ) -> Result<(), CloseReason> {
        self.requests += 1;
        self.spent += REQUEST_WORK;
        if self.agent_prefix.is_some() {
            self.check_restriction(id, &request)?;
        }
        let promise = self.operations.take_promise(id);
        let result = if self.watching {
            self.perform_shown(id, request, size)
        } else {
            self.perform(id, request, size)
        };
        if let Some(promise) = promise {
            self.operations.release(promise);
            self.wake();
        }
        result
    }

    /// Checks that a restricted connection uses nothing reserved for agents.
    #[cold]
    fn check_restriction(&self, id: ConnId, request: &Request<'_>) -> Result<(), CloseReason> {
        let connection = self.known(id).filter(|connection| connection.restricted);
        let (Some(_), Some(prefix)) = (connection, &self.agent_prefix) else {
            return Ok(());
        };
        let key = match request {
            Request::Extension { opcode, .. } => {
                return Err(CloseReason::ForAgents(format!("opcode {opcode:#04x}")));
            }
            Request::Check { keys } | Request::Wait { keys } | Request::MultiGet { keys } => {
                keys.clone().find(|key| key.starts_with(prefix))
            }
            Request::MultiSet { pairs } => {
                let mut keys = pairs.clone().map(|(key, _)| key);
                keys.find(|key| key.starts_with(prefix))
            }
            Request::QueuePush { key, .. }
            | Request::QueuePop { key }
            | Request::QueueLen { key } => Some(*key).filter(|key| key.starts_with(prefix)),
            other => other
                .single_key()
                .map(|(key, _)| key)
                .filter(|key| key.starts_with(prefix)),
        };
        match key {
            Some(key) => {
                let key = String::from_utf8_lossy(&key[..key.len().min(80)]);
                Err(CloseReason::ForAgents(format!("key {key:?}")))
            }
            None => Ok(()),
        }
    }

    /// Performs a request and shows it to the extension.
    ///
    /// The extension sees the key before the request, and again after a possible change. A request
    /// about several keys shows them where it is executed.
    #[cold]
    fn perform_shown(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        size: usize,
    ) -> Result<(), CloseReason> {
        let shown = request.single_key();
        if let Some((key, access)) = shown {
            self.show_key(key, access == Access::Writes);
        }
        let result = self.perform(id, request, size);
        if let Some((key, Access::Writes)) = shown {
            self.show_stored(key);
        }
        result
    }

    fn perform(
        &mut self,
        id: ConnId,
        request: Request<'_>,
        size: usize,
    ) -> Result<(), CloseReason> {
        // The extension detects only during its request whether the peer is an agent.
        if !matches!(
            request,
            Request::Validate { .. } | Request::Ping { .. } | Request::Extension { .. }
        ) {
            self.admit_use(id)?;
        }
        match request {
            Request::Validate { .. } => return Err(CloseReason::ValidatedTwice),
            Request::Ping { nonce } => {
                let answer = match self.extension.as_ref().map(|extension| extension.probe()) {
                    _ if nonce == NATIVE_PROBE => NATIVE_ANSWER,
                    Some((probe, answer)) if probe == nonce => answer,
                    _ => nonce,
                };
                self.small(id).extend_from_slice(&answer.to_le_bytes());
            }
            Request::Set { key, value } => {
                self.admit(id, key, size)?;
                self.operations.set(key, value);
                self.wake();
            }
            Request::CompareSet {
                key,
                expected,
                desired,
            } => {
                self.admit(id, key, size)?;
                let compared = self.operations.compare_set(key, expected.as_ref(), desired);
                let stored = compared.is_some();
                self.wake();
                if stored {
                    self.reply_value(id, key);
                } else {
                    reply::bytes(self.small(id), expected.as_ref());
                }
            }
            Request::Get { key } => self.reply_value(id, key),
            Request::Add { key, delta } => {
                self.admit(id, key, size)?;
                let added = self.operations.add(key, delta);
                let sum = added.map_err(|NotANumber| self.not_a_number("ADD", key))?;
                self.wake();
                reply::number(self.small(id), sum);
            }
            Request::Check { keys } if self.in_steps(keys.len()) => {
                return self.step(id, Unfinished::Check(keys.to_list()));
            }
            Request::Check { keys } => {
                self.spent += keys.len() * KEY_WORK;
                let ready = if self.operations.check(keys) {
                    CheckReply::Ready
                } else {
                    CheckReply::NotReady
                };
                self.small(id).push(ready as u8);
            }
            Request::Wait { keys } if self.in_steps(keys.len()) => {
                self.may_wait(id)?;
                let wait = self.operations.begin_wait(id);
                return self.step(id, Unfinished::Wait(wait, keys.to_list()));
            }
            Request::Wait { keys } => {
                self.spent += keys.len() * KEY_WORK;
                self.may_wait(id)?;
                self.make_room(id, 2 * (size + ENTRY_OVERHEAD * (keys.len() + 1)))?;
                if self.operations.wait(id, keys) {
                    self.small(id).push(STOP_WAITING);
                }
            }
            Request::GetWhenThere { key } if self.operations.keyspace().contains(key) => {
                self.small(id).push(VALUE_FOLLOWS);
                self.reply_value(id, key);
            }
            Request::GetWhenThere { key } => {
                self.spent += KEY_WORK;
                self.may_wait(id)?;
                self.make_room(id, 2 * (size + ENTRY_OVERHEAD * 2))?;
                if self.operations.wait(id, std::iter::once(key)) {
                    self.small(id).push(STOP_WAITING);
                }
            }
            Request::GetNumKeys {} => self.reply_count(id, self.operations.keyspace().len()),
            Request::DeleteKey { key } => {
                let deleted = self.operations.delete_key(key);
                self.reply_count(id, usize::from(deleted));
            }
            Request::Append { key, value } => {
                // A growing value may be moved to a buffer of twice its size.
                let held = self.operations.keyspace().length(key);
                self.admit(id, key, size + held)?;
                self.spent += self.operations.append(key, value);
                self.wake();
            }
            Request::MultiGet { keys } => {
                return self.step(id, Unfinished::MultiGet(keys.to_list()));
            }
            Request::MultiSet { pairs } if pairs.len() > WHOLE => {
                return self.step(id, Unfinished::MultiSet(pairs.to_list()));
            }
            Request::MultiSet { pairs } => {
                self.spent += pairs.len() * KEY_WORK;
                let new = pairs
                    .clone()
                    .filter(|(key, _)| !self.operations.keyspace().contains(key));
                let new = new.count();
                self.admit_more(id, size + new * ENTRY_OVERHEAD, new)?;
                if self.watching {
                    for (key, _) in pairs.clone() {
                        self.show_key(key, true);
                    }
                }
                self.operations.multi_set(pairs.clone());
                self.wake();
                if self.watching {
                    for (key, _) in pairs {
                        self.show_stored(key);
                    }
                }
            }
            Request::CancelWait {} => {
                self.operations.cancel_wait(id);
                self.small(id).push(WAIT_CANCELED);
            }
            Request::QueuePush { key, value } => {
                let new = self.operations.keyspace().queue_len(key) == 0;
                self.admit_more(id, size + 2 * ENTRY_OVERHEAD, usize::from(new))?;
                self.operations.queue_push(key, value);
                self.wake();
            }
            Request::QueuePop { key } => {
                let (length, value) = self.operations.queue_pop(key);
                self.reply_count(id, length);
                if let Some(value) = value {
                    self.outgoing(id).push_popped(value);
                }
            }
            Request::QueueLen { key } => {
                self.reply_count(id, self.operations.keyspace().queue_len(key));
            }
            Request::ListKeys {} => {
                return self.step(id, Unfinished::ListKeys(Listed::default()));
            }
            Request::Extension { opcode, payload } => {
                self.extension_requests += 1;
                self.make_room_for_request(id, payload.len() + 2 * ENTRY_OVERHEAD)?;
                self.extend(|extension, now, reach| {
                    extension.request(now, id, opcode, payload, reach);
                });
                self.admit_use(id)?;
            }
            Request::Barrier { key, world_size } => {
                self.may_wait(id)?;
                self.admit(id, key, size + 2 * ENTRY_OVERHEAD)?;
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

    /// Answers every connection whose wait is over.
    #[inline]
    pub(super) fn wake(&mut self) {
        if !self.operations.has_woken() {
            return;
        }
        for id in self.operations.woken() {
            self.spent += KEY_WORK;
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

    pub(super) fn reply_value(&mut self, id: ConnId, key: &[u8]) {
        let Some(Some(connection)) = self.connections.get_mut(id.0 as usize) else {
            return;
        };
        let value = self.operations.get(key).unwrap_or(Body::Inline(&[]));
        self.spent += KEY_WORK;
        if let Body::Inline(bytes) = &value {
            self.spent += bytes.len();
        }
        connection.outgoing.push_value(value);
    }

    /// `true` if a `CHECK` or `WAIT` of this many keys is executed in steps.
    ///
    /// An extension that watches its keys is shown each key in order.
    fn in_steps(&self, keys: usize) -> bool {
        keys > WHOLE || self.watching
    }

    fn may_wait(&self, id: ConnId) -> Result<(), CloseReason> {
        let limit = self.limits.max_waits;
        if self.operations.waiters().count(id) < limit {
            Ok(())
        } else {
            Err(CloseReason::TooManyWaits { limit })
        }
    }

    /// `true` if a connection must read replies before more are created for it.
    pub(super) fn is_unsent_full(&mut self, id: ConnId) -> bool {
        let limit = self.limits.max_unsent_bytes;
        !self.purging && self.outgoing(id).unsent() > limit
    }

    /// Admits a request of `size` bytes that may create `key`.
    #[inline]
    pub(super) fn admit(&self, id: ConnId, key: &[u8], size: usize) -> Result<(), CloseReason> {
        // A new key matters only to a peer that may not store one more.
        let new = self.admit_more(id, 0, 1).is_err() && !self.operations.keyspace().contains(key);
        self.admit_more(id, size + ENTRY_OVERHEAD, usize::from(new))
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
