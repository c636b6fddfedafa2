//! The failure report of torchelastic, with exactly the same layout.
//!
//! Other programs search job logs for this block.
//!
//! ```text
//! torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
//! ============================================================
//! train.py FAILED
//! ------------------------------------------------------------
//! Failures:
//! [1]:                                      every failure but the root cause, in the order seen
//! ------------------------------------------------------------
//! Root Cause (first observed failure):
//! [0]:
//! ============================================================
//! ```
//!
//! The first line ends with a blank. rdzv prints only the block, without a traceback of the
//! launcher above it.

mod document;
mod report_file;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use rdzv_agent::outcome::{Evidence, Exit, Failure};
use rdzv_core::signal;
use serde_json::Value;

pub(crate) use self::document::Document;
pub(crate) use self::report_file::ReportFile;

/// Text of the first line.
const HEADER: &str = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ";

/// Maximum width of a rule, which is otherwise as wide as the longest line.
const WIDEST: usize = 60;

const NOT_AVAILABLE: &str = "<N/A>";

/// Text for a failure without a recorded traceback and without a signal.
const NO_TRACEBACK: &str =
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

/// Renders the report, without a newline at its end.
///
/// `root_cause` is an index of `failures`. The times are in the time zone `zone`.
pub(crate) fn render(
    name: &str,
    failures: &[Failure],
    root_cause: usize,
    zone: &TimeZone,
) -> String {
    let title = format!("{name} FAILED");
    let mut entries: Vec<String> = failures
        .iter()
        .enumerate()
        .map(|(index, failure)| entry(index, failure, zone))
        .collect();
    let longest = entries
        .iter()
        .flat_map(|entry| entry.split('\n'))
        .chain([title.as_str()])
        .map(|line| line.chars().count())
        .max()
        .unwrap_or_default();
    let width = longest.min(WIDEST);
    let (border, section) = ("=".repeat(width), "-".repeat(width));
    let root = entries.remove(root_cause);
    let others = if entries.is_empty() {
        "  <NO_OTHER_FAILURES>".to_owned()
    } else {
        entries.join("\n")
    };
    format!(
        "{HEADER}\n{border}\n{title}\n{section}\nFailures:\n{others}\n{section}\n\
         Root Cause (first observed failure):\n{root}\n{border}"
    )
}

fn entry(index: usize, failure: &Failure, zone: &TimeZone) -> String {
    let evidence = &failure.evidence;
    let time = Timestamp::from_second(evidence.time().unix_seconds())
        .unwrap_or(Timestamp::UNIX_EPOCH)
        .to_zoned(zone.clone())
        .strftime("%Y-%m-%d_%H:%M:%S");
    let signal_name = match evidence.exit {
        Some(Exit::Signal(number)) => {
            signal::name(number).map_or_else(String::new, |name| format!(" ({name})"))
        }
        _ => String::new(),
    };
    let error_file = evidence.error_file.as_ref().map_or_else(
        || NOT_AVAILABLE.to_owned(),
        |file| file.path.display().to_string(),
    );
    format!(
        "[{index}]:\n  time      : {time}\n  host      : {host}\n  rank      : {rank} (local_rank: \
         {local_rank})\n  exitcode  : {code} (pid: {pid}) {signal_name}\n  error_file: \
         {error_file}\n  traceback : {traceback}",
        host = evidence.host,
        rank = evidence.rank.unwrap_or_default(),
        local_rank = evidence.local_rank.unwrap_or_default(),
        code = evidence.exit.map_or(0, Exit::as_number),
        pid = evidence.pid.unwrap_or_default(),
        traceback = traceback(evidence),
    )
}

/// Returns the text that the worker recorded, or a text about its exit.
fn traceback(evidence: &Evidence) -> String {
    let from_exit = || match evidence.exit {
        Some(Exit::Signal(number)) => format!(
            "Signal {number} ({}) received by PID {}",
            signal::name(number).unwrap_or(NOT_AVAILABLE),
            evidence.pid.unwrap_or_default()
        ),
        _ => NO_TRACEBACK.to_owned(),
    };
    match evidence.error_file.as_ref().map(|file| &file.content) {
        None => from_exit(),
        Some(Ok(content)) => match content.get("message") {
            Some(Value::String(text)) if text.is_empty() => from_exit(),
            // A line of a worker must not look like a line of rdzv.
            Some(Value::String(text)) => text.replace("\nrdzv: ", "\n  rdzv: "),
            Some(message @ Value::Object(_)) => {
                let stack = message.pointer("/extraInfo/py_callstack");
                let text = stack
                    .or_else(|| message.get("message"))
                    .and_then(Value::as_str)
                    .unwrap_or(NOT_AVAILABLE);
                text.replace('\n', "\n  ")
            }
            _ => format!("{} (the error file has no message in it)", from_exit()),
        },
        Some(Err(reason)) => {
            let text = evidence.traceback.as_ref();
            let text = text.map_or_else(from_exit, |text| text.replace('\n', "\n  "));
            format!("{text} (the error file was unreadable: {reason})")
        }
    }
}

#[cfg(test)]
mod tests;
