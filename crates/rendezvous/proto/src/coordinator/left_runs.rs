//! Runs that all agents have left: their keys are removed in the end.
//!
//! The key of a run stays when its last agent is gone, so that an agent which comes late finds that
//! the run is over, or goes on where it was. Anybody can close any run, or join and leave it, so
//! such keys are removed after [`KEPT_FOR`], and the oldest of them earlier if there are more than
//! [`MOST`].

use std::collections::BTreeMap;
use std::hash::Hasher as _;
use std::time::Duration;

use super::deadlines::Deadlines;
use rdzv_core::time::{Mono, Now};

/// Time for which the key of a run stays that nobody takes part in: longer than agents try to join.
pub const KEPT_FOR: Duration = Duration::from_secs(3600);

/// Most runs without agents whose keys are kept.
pub const MOST: usize = 1024;

/// The runs that were left, and when.
#[derive(Debug, Default)]
pub(super) struct LeftRuns {
    /// A digest of the value under the key of each run.
    forms: BTreeMap<String, u64>,
    ends: Deadlines<String>,
}

impl LeftRuns {
    /// Nobody takes part in a run any more, and this is under its key.
    pub(super) fn add(&mut self, now: Now, run: &str, form: &[u8]) {
        self.add_until(now.mono + KEPT_FOR, run, form);
    }

    /// Adds a run of the previous coordinator that no agent has asked about.
    ///
    /// A run whose members may reattach is removed after the runs that all agents have left.
    pub(super) fn add_noted(&mut self, now: Now, run: &str, is_held: bool) {
        let longer = if is_held { KEPT_FOR } else { Duration::ZERO };
        self.add_until(now.mono + KEPT_FOR + longer, run, &[]);
    }

    fn add_until(&mut self, until: Mono, run: &str, form: &[u8]) {
        self.forms.insert(run.to_owned(), digest(form));
        self.ends.set(run, until);
    }

    /// Somebody asks about a run. Tells whether it was left.
    pub(super) fn remove(&mut self, run: &str) -> bool {
        self.forms.remove(run);
        self.ends.remove(run)
    }

    /// A run whose key is to be removed.
    pub(super) fn due(&self, now: Now) -> Option<String> {
        let (until, run) = self.ends.first()?;
        (*until <= now.mono || self.forms.len() > MOST).then(|| run.clone())
    }

    /// Forgets a run that is due. Tells whether its key holds what it held, so that it can be
    /// removed: agents of torchrun may have gone on with the run.
    pub(super) fn take(&mut self, run: &str, value: Option<&[u8]>) -> bool {
        let form = self.forms.remove(run);
        self.ends.remove(run);
        form.is_some() && form == value.map(digest)
    }

    /// Whether a run was left.
    pub(super) fn has(&self, run: &str) -> bool {
        self.forms.contains_key(run)
    }

    /// When the next one is due.
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
