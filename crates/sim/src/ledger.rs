//! What must be true of all answers together.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::key::{Answer, Key};
use crate::history::{Operation, check};
use crate::key_operation::KeyOperation;
use crate::{Violation, broken};

/// What the clients have learnt so far.
#[derive(Debug, Default)]
pub struct Ledger {
    /// INV-S1: who took the register from a version to the next.
    winners: BTreeMap<u64, usize>,
    /// Sums that were answered to additions of 1.
    sums: BTreeSet<i64>,
    /// INV-S6: entries taken, by pusher and number.
    taken: BTreeSet<(usize, u64)>,
    /// INV-L1: what was done to each key.
    keys: BTreeMap<usize, Vec<Operation<Key>>>,
    /// How many answers were looked at.
    pub answers: u64,
}

impl Ledger {
    /// Something was done to a key, and perhaps answered.
    pub fn key_operation(&mut self, asked: KeyOperation, answered: Option<(u64, Answer)>) {
        let operations = self.keys.entry(asked.key).or_default();
        operations.push(Operation {
            call: asked.call,
            called: asked.called,
            answered,
        });
    }

    /// Fails unless what was done to each key has an order. Returns how many operations were looked at.
    pub fn linearizable(&self) -> Result<u64, Violation> {
        for (key, operations) in &self.keys {
            check(operations).map_err(|it| Violation(format!("key {key}: {}", it.0)))?;
        }
        Ok(self.keys.values().map(|all| all.len() as u64).sum())
    }

    /// A compare-and-set from `version` to the next one succeeded.
    pub fn won(&mut self, version: u64, client: usize) -> Result<(), Violation> {
        match self.winners.insert(version, client) {
            None => Ok(()),
            Some(other) => broken(format!(
                "INV-S1: clients {other} and {client} both took the register from version {version}"
            )),
        }
    }

    /// An addition of 1 to the shared counter was answered.
    pub fn added(&mut self, sum: i64) -> Result<(), Violation> {
        if self.sums.insert(sum) {
            return Ok(());
        }
        broken(format!("two additions were answered with {sum}"))
    }

    /// An entry was taken from the queue. With one queue and one server, the entries of a pusher
    /// are answered in the order in which they were pushed only if they travel to one popper; so
    /// only taking one twice is wrong here.
    pub fn took(&mut self, pusher: usize, number: u64) -> Result<(), Violation> {
        if self.taken.insert((pusher, number)) {
            return Ok(());
        }
        broken(format!(
            "INV-S6: entry {number} of client {pusher} was taken twice"
        ))
    }
}
