//! History of the run, as its agents see it.

use crate::history::record::Record;

/// History of the run, until its decisions may rightly be forgotten.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) record: Record,
    pub(super) has_ended: bool,
    /// `true` if every agent may be lost from now on.
    pub(super) all_may_be_lost: bool,
    /// `true` if a record may be lost, and with it the success of all agents.
    pub(super) is_unnoted: bool,
}
