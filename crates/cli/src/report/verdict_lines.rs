//! The verdict in a few lines, above the block: which failure came first and why, and what only
//! followed from it.
//!
//! ```text
//! rdzv: first failure: rank 5 (local rank 1, pid 4243, exit code 1) on node-a at 07:08:08.125001: ValueError: boom
//! rdzv: 6 more: ranks 0-4, 7: exit code -15 (SIGTERM), stopped by the agent
//! rdzv: 1 more: rank 6: exit code 1, ConnectionResetError: [Errno 104] Connection reset by peer
//! rdzv: no restart: exceeded max_restarts=3
//! ```

use std::fmt::Write;

use rdzv_agent::{Exit, Failure, Finality, Verdict};
use rdzv_core::rank::ranges;
use rdzv_core::signal;

/// How many lines of stderr are shown.
const MOST_LINES: usize = 10;

/// A reason that explains nothing: the run was to have no restarts.
const NONE_WANTED: Finality = Finality::BudgetUsed { max_restarts: 0 };

/// The lines, without a newline at the end; empty if nothing failed. `seen` tells of a local rank
/// whether its stderr was on this console anyhow.
pub(crate) fn render(verdict: &Verdict, seen: &dyn Fn(u32) -> bool) -> String {
    let Some(first) = verdict.first() else {
        return String::new();
    };
    let mut text = format!(
        "rdzv: first failure{}: {first} at {}: {}",
        if verdict.here { "" } else { " of the job" },
        first.time(),
        first.cause
    );
    let tail = &first.evidence.stderr_tail;
    let local_rank = first.evidence.local_rank;
    let on_console = verdict.here && local_rank.is_some_and(|rank| seen(rank.0));
    if !on_console && !tail.is_empty() {
        let skipped = tail.len().saturating_sub(MOST_LINES);
        text.push_str("\nrdzv: the last lines of its stderr:");
        for line in &tail[skipped..] {
            // Writing to a String cannot fail.
            let _ = write!(text, "\n    {}", line.trim_end());
        }
    }
    for group in alike(&verdict.failures[1..]) {
        let _ = write!(text, "\nrdzv: {}", in_one_line(&group));
    }
    if let Some(finality) = verdict.finality
        && finality != NONE_WANTED
    {
        let _ = write!(text, "\nrdzv: no restart: {finality}");
    }
    text
}

/// Failures of one cause together, in the order of their first ones.
fn alike(failures: &[Failure]) -> Vec<Vec<&Failure>> {
    let key = |failure: &Failure| {
        let cause = &failure.cause;
        let kind = cause.kind().to_owned();
        (kind, cause.to_string(), failure.evidence.exit)
    };
    let mut groups: Vec<Vec<&Failure>> = Vec::new();
    for failure in failures {
        let same = groups
            .iter_mut()
            .find(|group| key(group[0]) == key(failure));
        match same {
            Some(group) => group.push(failure),
            None => groups.push(vec![failure]),
        }
    }
    groups
}

fn in_one_line(group: &[&Failure]) -> String {
    let one = group[0];
    let ranks = group.iter().filter_map(|failure| failure.evidence.rank);
    let ranks: Vec<u32> = ranks.map(|rank| rank.0).collect();
    let who = match ranks.len() {
        0 => format!("node {}", one.evidence.host),
        1 => format!("rank {}", ranks[0]),
        _ => format!("ranks {}", ranges(ranks).replace(',', ", ")),
    };
    let exit = one.evidence.exit.map_or_else(String::new, |exit| {
        let name = match exit {
            Exit::Signal(number) => signal::name(number),
            Exit::Code(_) => None,
        };
        let name = name.map_or_else(String::new, |name| format!(" ({name})"));
        format!("exit code {}{name}, ", exit.as_number())
    });
    let why = if one.was_stopped() {
        "stopped by the agent".to_owned()
    } else {
        one.cause.to_string()
    };
    format!("{} more: {who}: {exit}{why}", group.len())
}

#[cfg(test)]
mod tests {
    use rdzv_agent::{Cause, Evidence};
    use rdzv_core::rank::{LocalRank, Rank};
    use rdzv_core::time::Wall;

    use super::*;

    fn failure(rank: u32, exit_code: i32, cause: &Cause) -> Failure {
        Failure {
            cause: cause.clone(),
            evidence: Evidence {
                host: "node-a".to_owned(),
                rank: Some(Rank(rank)),
                local_rank: Some(LocalRank(rank)),
                pid: Some(100 + rank),
                exit: Some(Exit::from_number(exit_code)),
                seen: Some(Wall::from_unix_micros(1_935_817_688_125_001)),
                ..Evidence::default()
            },
        }
    }

    fn verdict(failures: Vec<Failure>) -> Verdict {
        Verdict {
            here: true,
            failures,
            ..Verdict::default()
        }
    }

    #[test]
    fn what_followed_is_folded() {
        let stopped = Cause::StoppedByAgent { number: -15 };
        let mut records = vec![failure(5, 1, &Cause::exception("ValueError: boom"))];
        records.extend([4, 0, 2, 1, 3, 7].map(|rank| failure(rank, -15, &stopped)));
        records.push(failure(
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
        let mut first = failure(
            0,
            7,
            &Cause::ExitCode {
                code: 7,
                last_line: None,
            },
        );
        first.evidence.stderr_tail = (0..12).map(|line| format!("line {line}")).collect();
        let verdict = verdict(vec![first]);
        assert!(!render(&verdict, &|_| true).contains("line"));
        let text = render(&verdict, &|_| false);
        assert!(text.contains("of its stderr:\n    line 2\n"), "{text}");
        assert!(text.ends_with("\n    line 11"), "{text}");
    }

    #[test]
    fn the_end_of_restarts_is_explained_where_there_were_to_be_any() {
        for (finality, last) in [
            (
                Finality::BudgetUsed { max_restarts: 2 },
                Some("rdzv: no restart: exceeded max_restarts=2"),
            ),
            (
                Finality::NotRetryable { number: 3 },
                Some("rdzv: no restart: exit code 3 is not retryable"),
            ),
            (Finality::BudgetUsed { max_restarts: 0 }, None),
        ] {
            let mut verdict = verdict(vec![failure(0, 3, &Cause::exception("boom"))]);
            verdict.finality = Some(finality);
            let text = render(&verdict, &|_| true);
            assert_eq!(text.lines().nth(1), last, "{text}");
        }
    }

    #[test]
    fn a_failure_elsewhere_is_the_jobs() {
        let mut verdict = verdict(vec![failure(1, -9, &Cause::Signal { signal: 9 })]);
        verdict.here = false;
        assert_eq!(
            render(&verdict, &|_| true),
            "rdzv: first failure of the job: rank 1 (local rank 1, pid 101, SIGKILL) on node-a at \
             2031-05-06T07:08:08.125001Z: killed by SIGKILL, which the agent did not send"
        );
        assert_eq!(render(&Verdict::default(), &|_| true), "");
    }
}
