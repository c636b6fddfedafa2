//! Telling what a join waits for.

use rdzv_core::escape::escape;
use rdzv_core::reminder;
use rdzv_rendezvous_proto::waiting::Waiting;

/// As a warning, if people are to be reminded; else for a place that is always up to date (a status row), as an event of
/// the same target that is shown nowhere else.
pub(super) fn tell(run: &str, waiting: &Waiting, is_reminder: bool) {
    let left = waiting.left.as_secs();
    let left = (!waiting.is_last_call()).then_some(left);
    match is_reminder {
        true => tracing::warn!(target: reminder::TARGET, left, "[{}] {waiting}", escape(run)),
        false => tracing::debug!(target: reminder::TARGET, left, "[{}] {waiting}", escape(run)),
    }
}
