//! The log, in memory.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::prelude::{ConfState, Entry, HardState, RaftState, Snapshot};
use raft::{Error, GetEntriesContext, Result, Storage, StorageError};

/// Number of applied entries that a truncation keeps for slow followers.
const TAIL: u64 = 1024;

/// Log of one member, with the last snapshot of the state.
///
/// Everything counts as durable immediately, for as long as the process lives.
#[derive(Default)]
pub(crate) struct Log {
    pub(crate) hard_state: HardState,
    /// Configuration in force.
    pub(crate) conf_state: ConfState,
    /// Last snapshot; it covers at least everything that was truncated.
    snapshot: Snapshot,
    /// Index and term of the entry before the first one.
    truncated: (u64, u64),
    entries: VecDeque<Entry>,
    /// `true` if the snapshot is too old for a member that needs one.
    is_too_old: Cell<bool>,
}

impl Log {
    /// Creates the log of each member of a new group.
    ///
    /// The log consists of one snapshot, so that later members start with a snapshot too. Terms
    /// begin after `term`.
    pub(crate) fn of_group(conf_state: ConfState, state: Vec<u8>, term: u64) -> Self {
        let mut log = Self::default();
        log.hard_state.term = term;
        log.conf_state = conf_state;
        log.hard_state.commit = 1;
        log.truncated = (1, term);
        log.snapshot = log.snapshot_at(1, term, state);
        log
    }

    pub(crate) fn snapshot_index(&self) -> u64 {
        self.snapshot.get_metadata().index
    }

    pub(crate) fn last(&self) -> u64 {
        self.truncated.0 + self.entries.len() as u64
    }

    /// Returns the entries, the newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// Returns the term of an entry in the log, or of the entry before the first.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.truncated.0 {
            return Some(self.truncated.1);
        }
        let offset = index.checked_sub(self.truncated.0 + 1)?;
        let entry = self.entries.get(usize::try_from(offset).ok()?)?;
        Some(entry.term)
    }

    /// Appends entries; they replace existing entries from their first index on.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else {
            return;
        };
        let kept = first.index.saturating_sub(self.truncated.0 + 1);
        self.entries
            .truncate(usize::try_from(kept).unwrap_or(usize::MAX));
        self.entries.extend(entries.iter().cloned());
    }

    /// `true` if a member needed a newer snapshot since the last call.
    pub(crate) fn needs_snapshot(&self) -> bool {
        self.is_too_old.take()
    }

    /// Replaces the log by the snapshot of another member.
    pub(crate) fn restore(&mut self, snapshot: Snapshot) {
        let metadata = snapshot.get_metadata();
        self.truncated = (metadata.index, metadata.term);
        self.hard_state.commit = metadata.index;
        self.hard_state.term = self.hard_state.term.max(metadata.term);
        self.conf_state = metadata.get_conf_state().clone();
        self.entries.clear();
        self.snapshot = snapshot;
    }

    /// Stores the state after `index`, and drops most entries before it.
    pub(crate) fn truncate(&mut self, index: u64, state: Vec<u8>) {
        let Some(term) = self.term_at(index) else {
            return;
        };
        self.snapshot = self.snapshot_at(index, term, state);
        while self.truncated.0 + TAIL < index
            && let Some(entry) = self.entries.pop_front()
        {
            self.truncated = (entry.index, entry.term);
        }
    }

    fn snapshot_at(&self, index: u64, term: u64, state: Vec<u8>) -> Snapshot {
        let mut snapshot = Snapshot {
            data: state.into(),
            ..Snapshot::default()
        };
        let metadata = snapshot.mut_metadata();
        metadata.index = index;
        metadata.term = term;
        metadata.set_conf_state(self.conf_state.clone());
        snapshot
    }
}

impl Storage for Log {
    fn initial_state(&self) -> Result<RaftState> {
        Ok(RaftState::new(
            self.hard_state.clone(),
            self.conf_state.clone(),
        ))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> Result<Vec<Entry>> {
        if low <= self.truncated.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let bound = max_size.into().unwrap_or(u64::MAX);
        let first = usize::try_from(low - self.truncated.0 - 1).unwrap_or(usize::MAX);
        let count = usize::try_from(high - low).unwrap_or(usize::MAX);
        let mut size = 0_u64;
        let entries = self.entries.iter().skip(first).take(count);
        // At least one entry always fits.
        let fits = |entry: &&Entry| {
            let before = size;
            size += (entry.data.len() + entry.context.len() + 12) as u64;
            before == 0 || size <= bound
        };
        Ok(entries.take_while(fits).cloned().collect())
    }

    fn term(&self, index: u64) -> Result<u64> {
        self.term_at(index)
            .ok_or(Error::Store(if index < self.truncated.0 {
                StorageError::Compacted
            } else {
                StorageError::Unavailable
            }))
    }

    fn first_index(&self) -> Result<u64> {
        Ok(self.truncated.0 + 1)
    }

    fn last_index(&self) -> Result<u64> {
        Ok(self.last())
    }

    /// Returns the snapshot, if the member is in its configuration.
    ///
    /// A member accepts no other snapshot, so a snapshot from before its addition is useless.
    fn snapshot(&self, _: u64, to: u64) -> Result<Snapshot> {
        let conf_state = self.snapshot.get_metadata().get_conf_state();
        let known = [
            &conf_state.voters,
            &conf_state.learners,
            &conf_state.voters_outgoing,
        ];
        if known.iter().any(|members| members.contains(&to)) {
            return Ok(self.snapshot.clone());
        }
        self.is_too_old.set(true);
        Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}
