//! Invariants that hold over the answers to all clients.

use std::collections::{BTreeMap, BTreeSet};

use crate::history::key::{Answer, Key};
use crate::history::{Operation, check};
use crate::key_operation::KeyOperation;
use crate::{Result, Violation, broken};

/// Answers that the clients have received until now.
#[derive(Debug, Default)]
pub struct Ledger {
    /// INV-S1: client that advanced the register from each version.
    winners: BTreeMap<u64, usize>,
    /// Sums in the answers to additions of 1.
    sums: BTreeSet<i64>,
    /// INV-S6: entries that were taken, by pusher and number.
    taken: BTreeSet<(usize, u64)>,
    /// INV-L1: operations on each key.
    keys: BTreeMap<usize, Vec<Operation<Key>>>,
    /// Number of answers that were checked.
    pub answers: u64,
}

impl Ledger {
    /// Records an operation on a key, with its answer if there is one.
    pub fn key_operation(&mut self, asked: KeyOperation, answered: Option<(u64, Answer)>) {
        let operations = self.keys.entry(asked.key).or_default();
        operations.push(Operation {
            call: asked.call,
            called: asked.called,
            answered,
        });
    }

    /// Fails unless the operations on each key are linearizable.
    ///
    /// Returns the number of operations that were checked.
    pub fn linearizable(&self) -> Result<u64> {
        for (key, operations) in &self.keys {
            check(operations).map_err(|it| Violation(format!("key {key}: {}", it.0)))?;
        }
        Ok(self.keys.values().map(|all| all.len() as u64).sum())
    }

    /// Records a successful compare-and-set from `version` to the next version.
    pub fn won(&mut self, version: u64, client: usize) -> Result {
        match self.winners.insert(version, client) {
            None => Ok(()),
            Some(other) => broken(format!(
                "INV-S1: clients {other} and {client} both took the register from version {version}"
            )),
        }
    }

    /// Records the answer to an addition of 1 to the shared counter.
    pub fn added(&mut self, sum: i64) -> Result {
        if self.sums.insert(sum) {
            return Ok(());
        }
        broken(format!("two additions were answered with {sum}"))
    }

    /// Records an entry that was taken from the queue.
    ///
    /// The entries of one pusher keep their order only if one client takes them all. With one queue
    /// and one server, the only error is therefore an entry that is taken twice.
    pub fn took(&mut self, pusher: usize, number: u64) -> Result {
        if self.taken.insert((pusher, number)) {
            return Ok(());
        }
        broken(format!(
            "INV-S6: entry {number} of client {pusher} was taken twice"
        ))
    }
}
