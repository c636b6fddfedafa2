//! Deadlines of the agents of a crowd.

use std::collections::{BTreeMap, BTreeSet};

use rdzv_core::time::Mono;

/// Deadline of each agent.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeSet<(Mono, usize)>,
    by_agent: BTreeMap<usize, Mono>,
}

impl Deadlines {
    pub(super) fn set(&mut self, index: usize, at: Option<Mono>) {
        let was = match at {
            Some(at) => self.by_agent.insert(index, at),
            None => self.by_agent.remove(&index),
        };
        if let Some(was) = was {
            self.by_time.remove(&(was, index));
        }
        self.by_time.extend(at.map(|at| (at, index)));
    }

    /// Removes and returns an agent whose deadline has passed.
    pub(super) fn due(&mut self, now: Mono) -> Option<usize> {
        let first = *self.by_time.first()?;
        if first.0 > now {
            return None;
        }
        self.set(first.1, None);
        Some(first.1)
    }
}
