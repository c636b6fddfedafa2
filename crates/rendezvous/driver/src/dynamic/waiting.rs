//! Reports about the wait of a join.

use rdzv_core::escape::escape;
use rdzv_core::reminder;
use rdzv_rendezvous_proto::waiting::Waiting;

/// Logs the wait: as a warning if it is a reminder, otherwise as a debug event.
///
/// The debug event has the same target. Only a display that is always up to date, such as a status
/// row, shows it.
pub(super) fn tell(run: &str, waiting: &Waiting, is_reminder: bool) {
    let left = waiting.left.as_secs();
    let left = (!waiting.is_last_call()).then_some(left);
    if is_reminder {
        tracing::warn!(target: reminder::TARGET, left, "[{}] {waiting}", escape(run));
    } else {
        tracing::debug!(target: reminder::TARGET, left, "[{}] {waiting}", escape(run));
    }
}
