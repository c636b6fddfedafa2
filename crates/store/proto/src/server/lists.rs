//! Requests about many keys, which are executed in steps.
//!
//! By default, a request may name 131 072 keys, and `LIST_KEYS` is about every key. The server
//! executes such a request in steps, and the connection waits for its next turn between two steps.
//! The replies of `MULTI_GET` are created as the peer reads them.
//!
//! A `CHECK`, `WAIT` or `MULTI_SET` of at most [`WHOLE`] keys is executed as a whole, so no other
//! request sees a partial effect. `MULTI_GET` and `LIST_KEYS` may be split after any key.
//! While an extension watches its keys, every `CHECK` and `WAIT` is executed in steps.

use super::{CloseReason, ServerMachine, TURN_WORK};
use crate::keyspace::ENTRY_OVERHEAD;
use crate::waiters::Serial;
use crate::wire::fields::{KeyList, PairList};
use crate::wire::reply::{self, CheckReply, STOP_WAITING};
use rdzv_core::ident::ConnId;

/// Maximum number of keys of a `CHECK`, `WAIT` or `MULTI_SET` without steps.
pub(super) const WHOLE: usize = 512;

/// Work that counts for the lookup of one key.
pub(super) const KEY_WORK: usize = 128;

/// The rest of a request that is executed in steps.
#[derive(Debug)]
pub(super) enum Unfinished {
    Check(KeyList),
    Wait(Serial, KeyList),
    MultiGet(KeyList),
    MultiSet(PairList),
    ListKeys(Listed),
}

/// The keys that were listed until now.
#[derive(Debug, Default)]
pub(super) struct Listed {
    /// The reply without its leading count.
    reply: Vec<u8>,
    count: usize,
    /// Position of the last key in the reply.
    last: Option<usize>,
}

impl Unfinished {
    pub(super) fn memory(&self) -> usize {
        match self {
            Self::Check(keys) | Self::Wait(_, keys) | Self::MultiGet(keys) => keys.memory(),
            Self::MultiSet(pairs) => pairs.memory(),
            Self::ListKeys(list) => list.reply.capacity(),
        }
    }
}

impl ServerMachine {
    /// Executes one step of a request, and keeps the rest for the next turn.
    pub(super) fn step(&mut self, id: ConnId, unfinished: Unfinished) -> Result<(), CloseReason> {
        let left = match unfinished {
            Unfinished::Check(keys) => self.step_check(id, keys),
            Unfinished::Wait(wait, keys) => self.step_wait(id, wait, keys)?,
            Unfinished::MultiGet(keys) => self.step_multi_get(id, keys),
            Unfinished::MultiSet(pairs) => self.step_multi_set(id, pairs)?,
            Unfinished::ListKeys(list) => self.step_list_keys(id, list)?,
        };
        if let Some(connection) = self.connection(id) {
            connection.unfinished = left;
        }
        Ok(())
    }

    fn step_check(&mut self, id: ConnId, mut keys: KeyList) -> Option<Unfinished> {
        while self.spent < TURN_WORK {
            let Some(key) = keys.take_next() else {
                self.small(id).push(CheckReply::Ready as u8);
                return None;
            };
            self.spent += KEY_WORK;
            self.show_key(key, false);
            if !self.operations.keyspace().is_present(key) {
                self.small(id).push(CheckReply::NotReady as u8);
                return None;
            }
        }
        Some(Unfinished::Check(keys))
    }

    fn step_wait(
        &mut self,
        id: ConnId,
        wait: Serial,
        mut keys: KeyList,
    ) -> Result<Option<Unfinished>, CloseReason> {
        while self.spent < TURN_WORK {
            let Some(key) = keys.take_next() else {
                if self.operations.finish_wait(wait) {
                    self.small(id).push(STOP_WAITING);
                }
                return Ok(None);
            };
            self.spent += KEY_WORK;
            self.make_room(id, 2 * (ENTRY_OVERHEAD + key.len()))?;
            self.show_key(key, false);
            self.operations.add_to_wait(wait, std::iter::once(key));
        }
        Ok(Some(Unfinished::Wait(wait, keys)))
    }

    fn step_multi_get(&mut self, id: ConnId, mut keys: KeyList) -> Option<Unfinished> {
        while self.spent < TURN_WORK && !self.is_unsent_full(id) {
            let key = keys.take_next()?;
            self.show_key(key, false);
            self.reply_value(id, key);
        }
        Some(Unfinished::MultiGet(keys))
    }

    fn step_multi_set(
        &mut self,
        id: ConnId,
        mut pairs: PairList,
    ) -> Result<Option<Unfinished>, CloseReason> {
        while self.spent < TURN_WORK {
            let Some((key, value)) = pairs.take_next() else {
                return Ok(None);
            };
            self.spent += KEY_WORK + value.as_ref().len();
            self.admit(id, key, key.len() + value.as_ref().len())?;
            self.show_key(key, true);
            self.operations.set(key, value);
            self.wake();
            self.show_stored(key);
        }
        Ok(Some(Unfinished::MultiSet(pairs)))
    }

    /// Lists each key once that exists during the whole request.
    fn step_list_keys(
        &mut self,
        id: ConnId,
        mut list: Listed,
    ) -> Result<Option<Unfinished>, CloseReason> {
        let length = list.reply.len();
        let last = list.last.map(|at| list.reply[at..].to_vec());
        let mut keys = self.operations.keyspace().keys_after(last.as_deref());
        let is_done = loop {
            if self.spent >= TURN_WORK {
                break false;
            }
            let Some(key) = keys.next() else {
                break true;
            };
            self.spent += KEY_WORK + key.len();
            reply::length(&mut list.reply, key.len());
            list.last = Some(list.reply.len());
            list.reply.extend_from_slice(key);
            list.count += 1;
        };
        drop(keys);
        self.make_room_for_reply(id, list.reply.len() - length)?;
        if is_done {
            return Ok(self.finish_list(id, list));
        }
        Ok(Some(Unfinished::ListKeys(list)))
    }

    fn finish_list(&mut self, id: ConnId, list: Listed) -> Option<Unfinished> {
        reply::number(self.small(id), list.count as i64);
        let connection = self.connection(id)?;
        let reply = connection.account.meter.share(list.reply);
        connection.outgoing.push_shared(reply);
        None
    }
}
