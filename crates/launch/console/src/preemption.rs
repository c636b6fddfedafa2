//! The notice of preemption, and the report on the workers after it.

use std::time::Duration;

use rdzv_core::rank::GroupRank;
use rdzv_core::signal;

use crate::line::{Line, LineRole, said};
use crate::quantity::time;

/// Returns the lines that report the notice.
/// For example: `preemption: SIGUSR1; the workers have 30 s to exit`. `by` is the rank
/// of the node that received the signal; `None` means this node.
pub fn notice(
    signal: i32,
    by: Option<GroupRank>,
    shutdown_timeout: Duration,
    width: Option<usize>,
) -> Vec<Line> {
    let at = by.map_or_else(String::new, |by| format!(" at the node with rank {by}"));
    let text = format!(
        "preemption: {}{at}; the workers have {} to exit",
        signal::in_words(signal),
        time(shutdown_timeout)
    );
    said(LineRole::Warning, &text, width)
}

/// Returns the lines at the end of a preempted run.
/// For example: `preempted by SIGUSR1; the workers of this node exited after 2.0 s`.
pub fn ended(signal: i32, used: Duration, in_order: bool, width: Option<usize>) -> Vec<Line> {
    let signal = signal::in_words(signal);
    let used = used.as_secs_f64();
    let text = if in_order {
        format!("preempted by {signal}; the workers of this node exited after {used:.1} s")
    } else {
        format!(
            "preempted by {signal}; after {used:.1} s, not all workers of this node had exited \
             with code 0, by that signal or by SIGTERM"
        )
    };
    said(LineRole::Warning, &text, width)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(lines: &[Line]) -> String {
        lines.iter().map(Line::text).collect()
    }

    #[test]
    fn a_notice_names_its_signal_and_the_node_that_got_it() {
        let shutdown_timeout = Duration::from_secs(30);
        let here = text(&notice(10, None, shutdown_timeout, None));
        assert!(
            here.contains("preemption: SIGUSR1; the workers have 30 s to exit"),
            "{here}"
        );
        let there = text(&notice(10, Some(GroupRank(3)), shutdown_timeout, None));
        assert!(
            there.contains("SIGUSR1 at the node with rank 3;"),
            "{there}"
        );
    }

    #[test]
    fn the_end_says_whether_all_workers_were_in_order() {
        let used = Duration::from_millis(2040);
        let good = text(&ended(15, used, true, None));
        assert!(
            good.contains("preempted by SIGTERM; the workers of this node exited after 2.0 s"),
            "{good}"
        );
        assert!(text(&ended(15, used, false, None)).contains("not all workers of this node"));
    }
}
