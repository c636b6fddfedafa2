//! The summary of a run that failed.
//!
//! It reports the first failure with its cause, the failures that followed, and a remedy:
//!
//! ```text
//! rdzv: first failure: rank 5 (local rank 5, pid 4243, exit code 1) on node-a at
//!       2026-11-21T07:08:08.125001Z: ValueError: boom
//! rdzv: raised in train.py, line 41, in main
//!           config = load(path)
//! rdzv: 6 more: ranks 0-4, 7: exit code -15 (SIGTERM), stopped by the agent
//! rdzv: no restart: exceeded max_restarts=3
//! rdzv: earlier attempts: 1: rank 2 on node-a: out of memory: ...
//! rdzv: logs: /tmp/rdzv-x/attempt_1; report: report.json
//! rdzv: help: ...
//! ```
//!
//! [`verdict`] is the form of the summary that is printed above torchrun's report.

use rdzv_agent_proto::group::{Cause, Exit, Failure, Finality};
use rdzv_core::signal;
use textwrap::core::display_width;

use crate::event::{cause, subject};
use crate::line::{Line, LineRole, cut_words, quoted, said};
use crate::remedy::{self, Surroundings};
use crate::{stop, traceback};

/// Maximum number of lines of stderr that are shown: in a log, on a terminal.
const STDERR_LINES: (usize, usize) = (10, 4);

/// Maximum number of terminal rows for each part of a summary.
/// The parts are the first failure, each group of other failures, and the attempts.
const ROWS: (usize, usize, usize) = (4, 1, 2);

/// Maximum number of groups of other failures on a terminal.
const GROUPS: usize = 3;

/// Maximum number of attempts to list: the last ones.
const ATTEMPTS: usize = 4;

/// Finality of a run without restarts, which explains nothing.
const NONE_WANTED: Finality = Finality::BudgetUsed { max_restarts: 0 };

/// A run that has failed.
#[derive(Debug, Clone, Default)]
pub struct Failed<'a> {
    /// The failures of the job: the first one, and those that followed from it.
    pub failures: &'a [Failure],
    /// `true` if the first failure was on this node.
    pub here: bool,
    /// Reason why no restart followed.
    pub finality: Option<Finality>,
    /// `true` if this console has shown the stderr of the worker that failed first.
    pub stderr_seen: bool,
    /// Earlier attempts that failed.
    pub attempts: &'a [Attempt],
    /// Directory with the output of the worker that failed first.
    /// `None` if the worker is on another node, or its output is not in files.
    pub logs: Option<String>,
    /// Path of the report, if the user requested one.
    pub report: Option<String>,
    /// Facts on which the advice depends.
    pub surroundings: Surroundings,
}

/// An attempt that failed and was followed by a restart.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// Number of the attempt among those that failed, from 1.
    pub number: u32,
    /// First failure of the attempt on this node, if it is known.
    pub failure: Option<Failure>,
}

/// Returns the first failure in one sentence; empty if nothing failed.
pub fn first(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    let first = run.failures.first();
    first.map_or_else(Vec::new, |first| headline(run, first, width))
}

/// Returns the verdict; empty if nothing failed.
/// It consists of the first failure, the end of that worker's stderr (unless this console has shown
/// it), the consequences and the reason for no restart. `width` is that of a terminal. If it is
/// `None`, no line is wrapped, and all consequences are listed.
pub fn verdict(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    let Some(first) = run.failures.first() else {
        return Vec::new();
    };
    let mut lines = headline(run, first, width);
    lines.extend(last_words(run, first, width));
    lines.extend(consequences(run, width));
    lines.extend(no_restart(run, width));
    lines
}

/// Returns the whole summary; empty if nothing failed.
pub fn summary(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    let Some(first) = run.failures.first() else {
        return Vec::new();
    };
    let mut lines = headline(run, first, width);
    let origin = origin(first, width);
    lines.extend(if origin.is_empty() {
        last_words(run, first, width)
    } else {
        origin
    });
    lines.extend(consequences(run, width));
    lines.extend(no_restart(run, width));
    lines.extend(attempts(run, width));
    lines.extend(files(run, width));
    lines.extend(advice(
        remedy::of(first, &run.surroundings).as_deref(),
        width,
    ));
    lines
}

/// Returns the report of a run that failed because of an agent error.
/// The report consists of the text and, if the text has no advice, general advice, if there is any.
pub fn error(text: &str, width: Option<usize>) -> Vec<Line> {
    // Python puts a number in front: `[Errno 98] Address already in use`.
    let text_alone = traceback::without_mark(text, "[Errno ", "] ");
    let mut lines = said(LineRole::Error, text_alone, width);
    // The error's own advice is more precise.
    let general = remedy::of_text(text).filter(|_| !text.contains("\nhelp: "));
    lines.extend(advice(general, width));
    lines
}

fn headline(run: &Failed<'_>, first: &Failure, width: Option<usize>) -> Vec<Line> {
    let of = if run.here { "" } else { " of the job" };
    let mut cause = first.cause.to_string();
    if let Cause::NotStarted { reason } = &first.cause {
        cause = cause.replace(reason, &not_started(reason));
    }
    let text = format!("first failure{of}: {first} at {}: {cause}", first.time());
    within(said(LineRole::Error, &text, width), width, ROWS.0)
}

/// Replaces Python's form of a missing file in the reason why no worker ran.
fn not_started(reason: &str) -> String {
    const MISSING: &str = "[Errno 2] No such file or directory";
    let script = reason
        .strip_suffix(MISSING)
        .and_then(|rest| rest.split_once("can't open file "));
    match script {
        Some((_, script)) => format!(
            "No such file or directory: {}",
            script.trim_end_matches([':', ' '])
        ),
        None => reason.replace(MISSING, "No such file or directory"),
    }
}

/// Limits lines to `rows` rows on a terminal.
/// If rows are cut, the last one ends with an ellipsis.
fn within(mut lines: Vec<Line>, width: Option<usize>, rows: usize) -> Vec<Line> {
    let Some(width) = width else { return lines };
    if lines.len() > rows {
        lines.truncate(rows);
        let last = lines.last_mut().map(|line| &mut line.0);
        if let Some([before @ .., span]) = last.map(Vec::as_mut_slice) {
            let used: usize = before.iter().map(|span| display_width(&span.text)).sum();
            span.text = cut_words(&format!("{} …", span.text), width.saturating_sub(used));
        }
    }
    lines
}

/// Returns the relevant frames of the failure's traceback.
fn origin(first: &Failure, width: Option<usize>) -> Vec<Line> {
    let frames = first.evidence.traceback.as_deref().map(traceback::frames);
    let mut lines = Vec::new();
    for (index, frame) in frames.unwrap_or_default().iter().rev().enumerate() {
        let location = match index {
            0 => format!("raised in {}", frame.location),
            _ => format!("called from {}", frame.location),
        };
        lines.extend(said(LineRole::Detail, &location, width));
        if let Some(code) = &frame.code {
            lines.push(quoted(10, code, width));
        }
    }
    lines
}

/// Returns the end of the worker's stderr, if the console has not shown it.
fn last_words(run: &Failed<'_>, first: &Failure, width: Option<usize>) -> Vec<Line> {
    let tail = &first.evidence.stderr_tail;
    if run.stderr_seen || tail.is_empty() {
        return Vec::new();
    }
    let (in_log, on_terminal) = STDERR_LINES;
    let most = width.map_or(in_log, |_| on_terminal);
    let shown = tail[tail.len().saturating_sub(most)..].iter();
    let mut lines = said(LineRole::Detail, "the last lines of its stderr:", width);
    lines.extend(shown.map(|line| quoted(4, line.trim_end(), width)));
    lines
}

fn consequences(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    let groups = alike(&run.failures[1..]);
    let shown = if width.is_some() { GROUPS } else { usize::MAX };
    let mut lines = Vec::new();
    for group in groups.iter().take(shown) {
        let text = said(LineRole::Detail, &in_one_line(group), width);
        lines.extend(within(text, width, ROWS.1));
    }
    let others: usize = groups.iter().skip(shown).map(Vec::len).sum();
    if others > 0 {
        let text = format!("{others} more, with other causes");
        lines.extend(said(LineRole::Detail, &text, width));
    }
    lines
}

fn no_restart(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    match run.finality {
        Some(finality) if finality != NONE_WANTED => {
            said(LineRole::Detail, &format!("no restart: {finality}"), width)
        }
        _ => Vec::new(),
    }
}

fn attempts(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    if run.attempts.is_empty() {
        return Vec::new();
    }
    let skipped = run.attempts.len().saturating_sub(ATTEMPTS);
    let each = run.attempts[skipped..].iter().map(|attempt| {
        let why = attempt.failure.as_ref().map_or_else(
            || "unknown".to_owned(),
            |failure| format!("{}: {}", subject(failure), cause(failure, 60)),
        );
        format!("{}: {why}", attempt.number)
    });
    let each: Vec<String> = each.collect();
    let text = format!("earlier attempts: {}", each.join("; "));
    within(said(LineRole::Detail, &text, width), width, ROWS.2)
}

fn files(run: &Failed<'_>, width: Option<usize>) -> Vec<Line> {
    let logs = run.logs.iter().map(|path| format!("logs: {path}"));
    let report = run.report.iter().map(|path| format!("report: {path}"));
    let texts: Vec<String> = logs.chain(report).collect();
    if texts.is_empty() {
        Vec::new()
    } else {
        said(LineRole::Detail, &texts.join("; "), width)
    }
}

fn advice(text: Option<&str>, width: Option<usize>) -> Vec<Line> {
    let line = |text| said(LineRole::Advice, &format!("help: {text}"), width);
    text.map_or_else(Vec::new, line)
}

/// Groups failures by cause and exit, in the order of their first failures.
fn alike(failures: &[Failure]) -> Vec<Vec<&Failure>> {
    let key = |failure: &Failure| {
        let kind = failure.cause.kind().to_owned();
        (kind, failure.cause.to_string(), failure.evidence.exit)
    };
    let mut groups: Vec<Vec<&Failure>> = Vec::new();
    for failure in failures {
        let key_here = key(failure);
        match groups.iter_mut().find(|group| key(group[0]) == key_here) {
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
        _ => stop::ranks(&ranks),
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
pub(crate) mod tests;
