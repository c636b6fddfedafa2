//! Runs that all agents have left, and the removal of their keys.
//!
//! A run's key stays in the store after its last agent has left. A late agent can therefore
//! continue the run or see that it is over. Any client can create such runs, so the coordinator
//! removes their keys after [`KEPT_FOR`]. If there are more than [`MOST`], it removes the oldest
//! ones earlier.

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::time::Duration;

use super::deadlines::Deadlines;
use rdzv_core::time::{Mono, Now};

/// Time for which the key of a run without agents stays in the store.
///
/// It is longer than the default join timeout (600 s).
pub const KEPT_FOR: Duration = Duration::from_secs(3600);

/// Maximum number of runs without agents whose keys stay in the store.
pub const MOST: usize = 1024;

/// Runs that all agents have left, and the times at which to remove their keys.
#[derive(Debug, Default)]
pub(super) struct LeftRuns {
    /// Digest of the value under each run's key.
    forms: BTreeMap<String, u64>,
    ends: Deadlines<String>,
}

impl LeftRuns {
    /// Adds a run that all agents have left; its key has the value `form`.
    pub(super) fn add(&mut self, now: Now, run: &str, form: &[u8]) {
        self.add_for(now.mono + KEPT_FOR, run, form);
    }

    /// Adds a run of the previous coordinator that no agent has requested.
    ///
    /// A run whose members may reattach stays twice as long.
    pub(super) fn add_noted(&mut self, now: Now, run: &str, is_held: bool) {
        let longer = if is_held { KEPT_FOR } else { Duration::ZERO };
        self.add_for(now.mono + KEPT_FOR + longer, run, &[]);
    }

    fn add_for(&mut self, end: Mono, run: &str, form: &[u8]) {
        self.forms.insert(run.to_owned(), digest(form));
        self.ends.set(run, end);
    }

    /// Removes a run that an agent requests. Returns `true` if it was listed here.
    pub(super) fn remove(&mut self, run: &str) -> bool {
        self.forms.remove(run);
        self.ends.remove(run)
    }

    /// Returns a run whose key must be removed now.
    pub(super) fn due(&self, now: Now) -> Option<String> {
        let (end, run) = self.ends.first()?;
        (*end <= now.mono || self.forms.len() > MOST).then(|| run.clone())
    }

    /// Removes a run; returns `true` if its key still has the same value.
    ///
    /// Only then can the coordinator remove the key. Otherwise `torchrun` agents may have continued
    /// the run.
    pub(super) fn take(&mut self, run: &str, value: Option<&[u8]>) -> bool {
        let form = self.forms.remove(run);
        self.ends.remove(run);
        form.is_some() && form == value.map(digest)
    }

    /// `true` if the run is listed here.
    pub(super) fn has(&self, run: &str) -> bool {
        self.forms.contains_key(run)
    }

    /// Returns the time at which the next key must be removed.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.ends.next()
    }
}

fn digest(form: &[u8]) -> u64 {
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(form);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_noted_runs_those_that_agents_hold_stay() {
        let now = Now::default();
        let mut left = LeftRuns::default();
        left.add_noted(now, "a", true);
        for run in 0..=MOST {
            left.add_noted(now, &format!("b{run}"), false);
        }
        while let Some(run) = left.due(now) {
            assert!(left.take(&run, Some(&[])), "{run}");
        }
        assert_eq!((left.forms.len(), left.has("a")), (MOST, true));
    }
}
