//! The history of the run, as its agents see it.

use crate::history::record::Record;

/// The history of the run, until what was decided may rightly be forgotten.
#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) record: Record,
    pub(super) has_ended: bool,
    /// Anybody may be lost, from here on.
    pub(super) all_may_be_lost: bool,
    /// A note was lost, and with it, perhaps, that all have succeeded.
    pub(super) is_unnoted: bool,
}
