//! The verdict in a few lines, above the block: which failure came first and why, and what only
//! followed from it.
//!
//! ```text
//! rdzv: first failure: rank 5 (local rank 1, pid 4243, exit code 1) on node-a at 07:08:08.125001: ValueError: boom
//! rdzv: 6 more: ranks 0-4, 7: exit code -15 (SIGTERM), stopped by the agent
//! rdzv: 1 more: rank 6: exit code 1, ConnectionResetError: [Errno 104] Connection reset by peer
//! ```

use std::fmt::Write;

use rdzv_agent::{FailureRecord, Verdict};

use crate::signal;

/// How many lines of stderr are shown.
const MOST_LINES: usize = 10;

/// The lines, without a newline at the end; empty if nothing failed. `seen` tells of a local rank
/// whether its stderr was on this console anyhow.
pub(crate) fn render(verdict: &Verdict, seen: &dyn Fn(u32) -> bool) -> String {
    let Some(first) = &verdict.first else {
        return String::new();
    };
    let mut text = format!(
        "rdzv: first failure{}: {first} at {}: {}",
        if verdict.here { "" } else { " of the job" },
        first.time,
        first.cause.text
    );
    let on_console = verdict.here && first.local_rank.is_some_and(seen);
    if !on_console && !first.stderr_tail.is_empty() {
        let skipped = first.stderr_tail.len().saturating_sub(MOST_LINES);
        text.push_str("\nrdzv: the last lines of its stderr:");
        for line in &first.stderr_tail[skipped..] {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n    {}", line.trim_end());
        }
    }
    let others: Vec<&FailureRecord> = verdict
        .failures
        .iter()
        .filter(|failure| failure.secondary)
        .map(|failure| &failure.record)
        .collect();
    for group in alike(&others) {
        let _ = write!(text, "\nrdzv: {}", in_one_line(&group));
    }
    text
}

/// Failures of one cause together, in the order of their first ones.
fn alike<'a>(records: &[&'a FailureRecord]) -> Vec<Vec<&'a FailureRecord>> {
    let mut groups: Vec<Vec<&FailureRecord>> = Vec::new();
    for record in records {
        let same = groups
            .iter_mut()
            .find(|group| group[0].cause == record.cause && group[0].exit_code == record.exit_code);
        match same {
            Some(group) => group.push(record),
            None => groups.push(vec![record]),
        }
    }
    groups
}

fn in_one_line(group: &[&FailureRecord]) -> String {
    let one = group[0];
    let ranks: Vec<u32> = group.iter().filter_map(|record| record.rank).collect();
    let who = match ranks.len() {
        0 => format!("node {}", one.host),
        1 => format!("rank {}", ranks[0]),
        _ => format!("ranks {}", ranges(ranks)),
    };
    let exit = one.exit_code.map_or_else(String::new, |code| {
        let name = (code < 0)
            .then(|| signal::name(code.saturating_neg()))
            .flatten()
            .map_or_else(String::new, |name| format!(" ({name})"));
        format!("exit code {code}{name}, ")
    });
    let why = if one.was_stopped() {
        "stopped by the agent"
    } else {
        &one.cause.text
    };
    format!("{} more: {who}: {exit}{why}", group.len())
}

/// `0-4, 7`.
fn ranges(mut ranks: Vec<u32>) -> String {
    ranks.sort_unstable();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == rank => *last = rank,
            _ => parts.push((rank, rank)),
        }
    }
    let parts: Vec<String> = parts
        .into_iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use rdzv_agent::{Cause, CauseRecord, JudgedFailure};

    use super::*;

    fn record(rank: u32, exit_code: i32, cause: &Cause) -> FailureRecord {
        FailureRecord {
            host: "node-a".to_owned(),
            rank: Some(rank),
            local_rank: Some(rank),
            pid: Some(100 + rank),
            exit_code: Some(exit_code),
            time: "2031-05-06T07:08:08.125001Z".to_owned(),
            cause: CauseRecord::from(cause),
            ..FailureRecord::default()
        }
    }

    fn verdict(records: Vec<FailureRecord>) -> Verdict {
        Verdict {
            first: records.first().cloned(),
            here: true,
            failures: records
                .into_iter()
                .enumerate()
                .map(|(index, record)| JudgedFailure {
                    record,
                    secondary: index > 0,
                })
                .collect(),
            restart_count: 0,
        }
    }

    #[test]
    fn what_followed_is_folded() {
        let stopped = Cause::StoppedByAgent { number: -15 };
        let mut records = vec![record(5, 1, &Cause::exception("ValueError: boom"))];
        records.extend([4, 0, 2, 1, 3, 7].map(|rank| record(rank, -15, &stopped)));
        records.push(record(
            6,
            1,
            &Cause::exception("ConnectionResetError: gone"),
        ));
        insta::assert_snapshot!(render(&verdict(records), &|_| true), @r"
        rdzv: first failure: rank 5 (local rank 5, pid 105, exit code 1) on node-a at 2031-05-06T07:08:08.125001Z: ValueError: boom
        rdzv: 6 more: ranks 0-4, 7: exit code -15 (SIGTERM), stopped by the agent
        rdzv: 1 more: rank 6: exit code 1, ConnectionResetError: gone
        ");
    }

    #[test]
    fn stderr_that_nobody_has_seen_is_shown() {
        let mut first = record(
            0,
            7,
            &Cause::ExitCode {
                code: 7,
                last_line: None,
            },
        );
        first.stderr_tail = (0..12).map(|line| format!("line {line}")).collect();
        let verdict = verdict(vec![first]);
        assert!(!render(&verdict, &|_| true).contains("line"));
        let text = render(&verdict, &|_| false);
        assert!(text.contains("of its stderr:\n    line 2\n"), "{text}");
        assert!(text.ends_with("\n    line 11"), "{text}");
    }

    #[test]
    fn a_failure_elsewhere_is_the_jobs() {
        let mut verdict = verdict(vec![record(1, -9, &Cause::Signal { signal: 9 })]);
        verdict.here = false;
        assert_eq!(
            render(&verdict, &|_| true),
            "rdzv: first failure of the job: rank 1 (local rank 1, pid 101, SIGKILL) on node-a at \
             2031-05-06T07:08:08.125001Z: killed by SIGKILL, which the agent did not send"
        );
        assert_eq!(render(&Verdict::default(), &|_| true), "");
    }
}
