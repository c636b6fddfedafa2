//! The operations of a store.
//!
//! This module defines their effects on the keys, and which waits they end.
//!
//! | operation | wakes |
//! |---|---|
//! | set, append, add, multi_set, barrier | waits for the key, and barriers that are complete |
//! | compare_set | the same, if the value was stored |
//! | queue_push | the oldest waiter, one per entry (see [`Operations::release`]) |
//! | get, check, delete_key, queue_pop … | none |
//!
//! Woken connections are collected in a list that the caller empties with [`Operations::woken`]
//! after each operation.

use std::collections::BTreeMap;

use super::keyspace::{Keyspace, NotANumber, StoredValue};
use super::meter::Meter;
use super::number;
use super::waiters::{Serial, WaitKind, Waiters};
use super::wire::fields::{Body, Keys, PairFields};
use rdzv_core::ident::ConnId;

/// A store: data, waiters and the rules that tie them together.
#[derive(Debug, Default)]
pub struct Operations {
    keyspace: Keyspace,
    waiters: Waiters,
    woken: Vec<ConnId>,
    /// Per connection, the queue whose entry it was promised and has not popped.
    promised: BTreeMap<ConnId, Promise>,
    /// Number of promises per queue.
    promises: BTreeMap<Box<[u8]>, usize>,
}

/// A queue entry that ended a connection's wait.
#[derive(Debug)]
pub struct Promise(Box<[u8]>);

impl Operations {
    /// Creates an empty store that counts everything with `meter`.
    pub fn new(meter: Meter) -> Self {
        Self {
            keyspace: Keyspace::new(meter),
            ..Self::default()
        }
    }

    /// Returns the data.
    pub fn keyspace(&self) -> &Keyspace {
        &self.keyspace
    }

    /// Returns the waits.
    pub fn waiters(&self) -> &Waiters {
        &self.waiters
    }

    /// Sets the owner of all values and waits that are created from now on.
    #[inline]
    pub fn act_for(&mut self, owner: &Meter) {
        self.keyspace.store_for(owner);
    }

    /// Removes and returns all connections whose waits are over.
    #[inline]
    pub fn woken(&mut self) -> impl Iterator<Item = ConnId> {
        self.woken.drain(..)
    }

    /// `true` if there are connections to wake.
    #[inline]
    pub fn has_woken(&self) -> bool {
        !self.woken.is_empty()
    }

    /// Stores a value.
    pub fn set(&mut self, key: &[u8], value: Body<'_>) {
        self.keyspace.set(key, value);
        self.written(key);
    }

    /// Stores `desired` if the value is `expected`; absent counts as empty.
    ///
    /// Returns the resulting value of the key, or `None` if the key is absent and `expected` is not
    /// empty. PyTorch answers with `expected` in that case.
    pub fn compare_set(
        &mut self,
        key: &[u8],
        expected: &[u8],
        desired: Body<'_>,
    ) -> Option<Body<'_>> {
        let stores = match self.keyspace.peek(key) {
            Some(held) => held == expected,
            None => expected.is_empty(),
        };
        if stores {
            self.keyspace.set(key, desired);
            self.written(key);
        }
        self.keyspace.get(key)
    }

    /// Returns the value of a key.
    pub fn get(&mut self, key: &[u8]) -> Option<Body<'_>> {
        self.keyspace.get(key)
    }

    /// Adds to the number under a key and returns the sum.
    pub fn add(&mut self, key: &[u8], delta: i64) -> Result<i64, NotANumber> {
        let sum = self.keyspace.add(key, delta)?;
        self.written(key);
        Ok(sum)
    }

    /// `true` if each name is a key or a non-empty queue.
    pub fn check(&self, mut names: Keys<'_>) -> bool {
        names.all(|name| self.keyspace.is_present(name))
    }

    /// Checks names, and waits for absent ones; `true` if all names exist.
    ///
    /// Otherwise, registers the connection on the names that do not exist.
    pub fn wait<'a>(
        &mut self,
        connection: ConnId,
        names: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
    ) -> bool {
        let keyspace = &self.keyspace;
        let mut absent = names
            .clone()
            .filter(|name| !keyspace.is_present(name))
            .peekable();
        if absent.peek().is_some() {
            let owner = keyspace.owner();
            self.waiters
                .register(connection, WaitKind::Presence, absent, owner);
            return false;
        }
        // A connection that waits only for a queue pops one of its entries next.
        let mut names = names;
        if self.keyspace.queue_count() > 0
            && names.len() == 1
            && let Some(name) = names.next()
            && !self.keyspace.contains(name)
        {
            self.promise(connection, name);
        }
        true
    }

    /// Begins a wait to which names are added in several steps.
    pub fn begin_wait(&mut self, connection: ConnId) -> Serial {
        let owner = self.keyspace.owner();
        self.waiters.begin(connection, WaitKind::Presence, owner)
    }

    /// Adds names to a wait that has begun.
    pub fn add_to_wait(&mut self, wait: Serial, names: impl Iterator<Item = impl AsRef<[u8]>>) {
        for name in names {
            if !self.keyspace.is_present(name.as_ref()) {
                self.waiters.add(wait, name.as_ref());
            }
        }
    }

    /// Ends the list of names of a wait; `true` if the wait is already over.
    pub fn finish_wait(&mut self, wait: Serial) -> bool {
        self.waiters.finish(wait)
    }

    /// Removes some registrations of cancelled waits; `true` if there are more.
    #[inline]
    pub fn sweep(&mut self) -> bool {
        self.waiters.sweep()
    }

    /// Cancels all waits of a connection.
    pub fn cancel_wait(&mut self, connection: ConnId) {
        self.waiters.cancel(connection);
    }

    /// Removes a key; `true` if it existed.
    pub fn delete_key(&mut self, key: &[u8]) -> bool {
        self.keyspace.remove(key)
    }

    /// Appends to a value or creates it; returns the number of old bytes copied.
    pub fn append(&mut self, key: &[u8], value: Body<'_>) -> usize {
        let copied = self.keyspace.append(key, value);
        self.written(key);
        copied
    }

    /// Stores several values; no other request sees only some of them.
    pub fn multi_set(&mut self, pairs: PairFields<'_>) {
        for (key, value) in pairs.clone() {
            self.keyspace.set(key, value);
        }
        if !self.waiters.is_empty() {
            for (key, _) in pairs {
                self.written(key);
            }
        }
    }

    /// Adds to the end of a queue.
    pub fn queue_push(&mut self, name: &[u8], value: Body<'_>) {
        self.keyspace.push(name, value);
        self.offer(name);
    }

    /// Removes the first entry of a queue.
    ///
    /// Returns the length before the removal, and the entry.
    pub fn queue_pop(&mut self, name: &[u8]) -> (usize, Option<StoredValue>) {
        (self.keyspace.queue_len(name), self.keyspace.pop(name))
    }

    /// Counts a member of a barrier.
    ///
    /// Returns `true` if the barrier is complete, and `false` if the connection waits.
    pub fn barrier(
        &mut self,
        connection: ConnId,
        key: &[u8],
        world_size: i64,
    ) -> Result<bool, NotANumber> {
        let arrived = self.keyspace.add(key, 1)?;
        self.written(key);
        let complete = arrived >= world_size;
        if !complete {
            let kind = WaitKind::Barrier(world_size);
            let owner = self.keyspace.owner();
            self.waiters
                .register(connection, kind, std::iter::once(key), owner);
        }
        Ok(complete)
    }

    /// Returns the number under a key, or `None` if there is none.
    pub fn number(&self, key: &[u8]) -> Option<i64> {
        number::parse(self.keyspace.peek(key)?)
    }

    /// Withdraws the promise to a connection before its next request is executed.
    #[inline]
    pub fn take_promise(&mut self, connection: ConnId) -> Option<Promise> {
        if self.promised.is_empty() {
            return None;
        }
        self.promised.remove(&connection)
    }

    /// Ends a promise.
    ///
    /// The holder has sent a request, has received another promise, or has disconnected.
    /// If the entry is still in the queue, the next waiter is woken for it. Each entry of a queue
    /// thus wakes one waiter at a time. No entry is lost if a waiter dies before it pops the entry.
    pub fn release(&mut self, promise: Promise) {
        if let Some(count) = self.promises.get_mut(&promise.0) {
            *count -= 1;
            if *count == 0 {
                self.promises.remove(&promise.0);
            }
        }
        self.offer(&promise.0);
    }

    /// Forgets a connection that was closed or is being closed.
    pub fn disconnect(&mut self, connection: ConnId) {
        self.waiters.cancel(connection);
        if let Some(promise) = self.take_promise(connection) {
            self.release(promise);
        }
    }

    /// Removes every key and queue whose name starts with none of `prefixes`.
    pub fn keep_prefixes(&mut self, prefixes: &[&[u8]]) {
        self.keyspace.keep_prefixes(prefixes);
    }

    #[inline]
    fn written(&mut self, key: &[u8]) {
        if self.waiters.has(key) {
            self.waiters.wake(key, self.number(key), &mut self.woken);
        }
    }

    fn offer(&mut self, name: &[u8]) {
        if !self.waiters.has(name) {
            return;
        }
        let promised = self.promises.get(name).copied().unwrap_or(0);
        let available = self.keyspace.queue_len(name).saturating_sub(promised);
        let already = self.woken.len();
        let promises = self.waiters.offer(name, available, &mut self.woken);
        debug_assert_eq!(
            self.woken.len() - already,
            promises,
            "an offer wakes its takers"
        );
        for index in already..self.woken.len() {
            self.promise(self.woken[index], name);
        }
    }

    fn promise(&mut self, connection: ConnId, name: &[u8]) {
        *self.promises.entry(name.into()).or_default() += 1;
        if let Some(earlier) = self.promised.insert(connection, Promise(name.into())) {
            self.release(earlier);
        }
    }
}
