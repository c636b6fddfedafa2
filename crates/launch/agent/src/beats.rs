//! Last heartbeat of each worker, shared with other threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use rdzv_core::rank::LocalRank;
use rdzv_core::time::Wall;

/// Last heartbeat of each worker of the attempt. Clones share one state.
#[derive(Debug, Clone, Default)]
pub struct Beats(Arc<Mutex<BTreeMap<LocalRank, Beat>>>);

/// Heartbeat of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// Time at which the agent read the heartbeat.
    pub at: Wall,
    /// Last step that a heartbeat named.
    pub step: Option<u64>,
}

impl Beats {
    /// Returns the last heartbeat of a worker.
    pub fn of(&self, local_rank: LocalRank) -> Option<Beat> {
        self.lock(|beats| beats.get(&local_rank).copied())
    }

    /// Records a heartbeat, and the step that it names, if any.
    pub fn record(&self, local_rank: LocalRank, at: Wall, step: Option<u64>) {
        self.lock(|beats| {
            let before = beats.get(&local_rank).and_then(|beat| beat.step);
            let step = step.or(before);
            beats.insert(local_rank, Beat { at, step });
        });
    }

    pub(crate) fn clear(&self) {
        self.lock(BTreeMap::clear);
    }

    fn lock<T>(&self, work: impl FnOnce(&mut BTreeMap<LocalRank, Beat>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
