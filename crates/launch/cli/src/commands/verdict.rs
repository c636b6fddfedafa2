//! `rdzv verdict`: computes the result of a job from the reports of its nodes.
//!
//! A scheduler may use the worst exit code of all nodes as the job's exit code. But a job that lost
//! a node and continued may have succeeded. The reports of the remaining nodes show whether it did.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Deserialize;

use crate::exit::Exit;
use crate::terminal::{complain, show};

/// Print the result of a job from the report files of its nodes.
///
/// `rdzv run --report` writes these files. The command prints one sentence and exits with the job's
/// exit code. That code is 0 if the workers of any node succeeded, because a job may continue
/// without lost nodes. Otherwise it is the code of the node with the first failure, if a report has
/// one. A lost node has no file and needs none.
#[derive(Debug, Args)]
pub(super) struct VerdictArgs {
    /// Report files, or directories with .json report files.
    #[arg(required = true, value_name = "FILE|DIRECTORY")]
    files: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Report {
    run_id: Option<String>,
    outcome: String,
    exit_code: u8,
    restart_count: u32,
    host: String,
    first_failure: Option<First>,
    error: Option<String>,
}

/// First failure that a node knows.
#[derive(Debug, Deserialize)]
struct First {
    host: String,
    rank: Option<u32>,
    time: Option<String>,
    cause: Cause,
}

#[derive(Debug, Deserialize)]
struct Cause {
    text: String,
}

pub(super) fn run(arguments: &VerdictArgs) -> ExitCode {
    let read = |path: &PathBuf| {
        let text = fs::read_to_string(path).map_err(|error| error.to_string());
        let report = text.and_then(|text| {
            serde_json::from_str(&text)
                .map_err(|error| format!("it is not a report of rdzv run: {error}"))
        });
        report.map_err(|error| format!("cannot read {}: {error}", path.display()))
    };
    let files: Result<Vec<Vec<PathBuf>>, String> = arguments.files.iter().map(of_path).collect();
    let reports = files.and_then(|files| {
        let reports: Result<Vec<Report>, String> = files.iter().flatten().map(read).collect();
        reports
    });
    match reports.and_then(|reports| decide(&reports)) {
        Ok((sentence, code)) => {
            show(&format!("{sentence}\n"));
            ExitCode::from(code)
        }
        Err(error) => {
            complain(&format!("rdzv verdict: {error}"));
            Exit::Usage.into()
        }
    }
}

/// Returns the file, or all files in the directory whose names end in `.json`.
fn of_path(path: &PathBuf) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.clone()]);
    }
    let entries =
        fs::read_dir(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<PathBuf> = files
        .filter(|file| file.extension().is_some_and(|ends| ends == "json"))
        .collect();
    files.sort();
    if files.is_empty() {
        Err(format!("{} contains no report", path.display()))
    } else {
        Ok(files)
    }
}

/// Returns the sentence and the exit code.
fn decide(reports: &[Report]) -> Result<(String, u8), String> {
    let run = |report: &Report| report.run_id.clone().unwrap_or_else(|| "none".to_owned());
    let name = reports.first().map(run).unwrap_or_default();
    if let Some(other) = reports.iter().map(run).find(|other| *other != name) {
        return Err(format!(
            "the reports are from several runs, such as '{name}' and '{other}': specify the \
             reports of one run"
        ));
    }
    let count = |number: usize, what: &str| match number {
        1 => format!("1 {what}"),
        _ => format!("{number} {what}s"),
    };
    let succeeded = reports
        .iter()
        .filter(|report| report.outcome == "succeeded");
    let (succeeded, all) = (succeeded.count(), reports.len());
    let restarts = reports.iter().map(|report| report.restart_count).max();
    let restarts = count(restarts.unwrap_or(0) as usize, "restart");
    if succeeded > 0 {
        let nodes = if succeeded == all {
            count(all, "node")
        } else {
            format!("{succeeded} of {}", count(all, "node"))
        };
        return Ok((
            format!("run {name} succeeded on {nodes} with {restarts}"),
            0,
        ));
    }
    let failures = reports
        .iter()
        .filter_map(|report| Some((report, report.first_failure.as_ref()?)));
    // A failure without a time comes last.
    let time = |first: &First| (first.time.is_none(), first.time.clone());
    if let Some((report, first)) = failures.min_by_key(|(_, first)| time(first)) {
        let rank = first
            .rank
            .map_or_else(String::new, |rank| format!("rank {rank} on "));
        let text = format!(
            "run {name} failed with {restarts}: first failure: {rank}{}: {}",
            first.host, first.cause.text
        );
        return Ok((text, report.exit_code.max(1)));
    }
    // A preempted node knows nothing about other nodes, so the other nodes' reports come first.
    let is_preempted = |report: &&Report| report.outcome == "preempted";
    let other = reports.iter().find(|report| !is_preempted(report));
    let Some(report) = other.or(reports.first()) else {
        return Err("no report was specified".to_owned());
    };
    if is_preempted(&report) {
        let text = format!(
            "run {name} was preempted on {} with {restarts}",
            count(all, "node")
        );
        return Ok((text, report.exit_code.max(1)));
    }
    let error = report.error.as_deref().unwrap_or(&report.outcome);
    let text = format!(
        "run {name} failed with {restarts}: node {}: {error}",
        report.host
    );
    Ok((text, report.exit_code.max(1)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(host: &str, outcome: &str, code: u8, failed_at: Option<&str>) -> Report {
        let first = failed_at.map(|time| {
            json!({
                "host": host, "rank": 3, "time": time,
                "cause": { "kind": "exception", "text": "ValueError: boom" },
            })
        });
        let report = json!({
            "version": 1, "run_id": "job", "outcome": outcome, "exit_code": code, "restart_count": 1,
            "host": host, "first_failure": first, "error": null, "failures": [],
        });
        serde_json::from_value(report).unwrap()
    }

    fn answer(reports: &[Report]) -> (String, u8) {
        decide(reports).unwrap()
    }

    #[test]
    fn a_job_that_went_on_without_a_node_has_succeeded() {
        let reports = [
            report("a", "succeeded", 0, None),
            report("b", "error", 1, None),
            report("c", "succeeded", 0, None),
        ];
        let text = "run job succeeded on 2 of 3 nodes with 1 restart";
        assert_eq!(answer(&reports), (text.to_owned(), 0));
        let text = "run job succeeded on 1 node with 1 restart";
        assert_eq!(answer(&reports[..1]), (text.to_owned(), 0));
    }

    #[test]
    fn a_job_that_failed_ends_with_the_code_of_its_first_failure() {
        let reports = [
            report("a", "failed", 1, Some("2031-05-06T07:08:09Z")),
            report("b", "failed", 17, Some("2031-05-06T07:08:08Z")),
            report("c", "signalled", 143, None),
        ];
        let text = "run job failed with 1 restart: first failure: rank 3 on b: ValueError: boom"
            .to_owned();
        assert_eq!(answer(&reports), (text, 17));
        let text = "run job failed with 1 restart: node c: signalled".to_owned();
        assert_eq!(answer(&reports[2..]), (text, 143));
    }

    #[test]
    fn a_job_was_preempted_if_all_its_nodes_were() {
        let mut reports = vec![
            report("a", "preempted", 75, None),
            report("b", "preempted", 75, None),
        ];
        let text = "run job was preempted on 2 nodes with 1 restart".to_owned();
        assert_eq!(answer(&reports), (text, 75));
        reports.push(report("c", "signalled", 138, None));
        let text = "run job failed with 1 restart: node c: signalled".to_owned();
        assert_eq!(answer(&reports), (text, 138));
    }

    #[test]
    fn reports_of_two_runs_are_refused() {
        let mut reports = [
            report("a", "succeeded", 0, None),
            report("b", "failed", 1, None),
        ];
        reports[1].run_id = Some("other".to_owned());
        let text = decide(&reports).unwrap_err();
        assert!(
            text.contains("several runs, such as 'job' and 'other'"),
            "{text}"
        );
    }
}
