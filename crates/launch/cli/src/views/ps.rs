//! `rdzv ps`: this user's jobs on this machine.

use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use rdzv_agent::observe::NodeReport;
use rdzv_core::escape::escape;
use serde_json::{Value, json};

use super::client;
use crate::terminal::show;

/// List this user's running jobs on this machine.
///
/// A line contains the job's id, its nodes, its ranks and those that run here, the state of the
/// worker group, the age of the oldest agent here, and the used and allowed restarts.
#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print the jobs as a JSON array.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &PsArgs) -> ExitCode {
    let reports = client::reports().into_iter().map(|(_, report)| report);
    let jobs = jobs(&reports.collect::<Vec<_>>(), now());
    if arguments.json {
        return show(&format!("{:#}\n", Value::from(jobs)));
    }
    if jobs.is_empty() {
        return show("this user has no running job on this machine\n");
    }
    show(&table(&jobs))
}

/// Returns the time in seconds since the Unix epoch.
pub(crate) fn now() -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}

/// Returns one JSON object for each job.
///
/// The reports are in the order of their jobs.
fn jobs(reports: &[NodeReport], now: f64) -> Vec<Value> {
    let by_job = reports.chunk_by(|one, other| one.run_id == other.run_id);
    let jobs = by_job.map(|reports| {
        let workers = || reports.iter().flat_map(|report| &report.workers);
        let began = reports.iter().filter_map(|report| report.began);
        let began = began.fold(now, f64::min);
        let world = reports.iter().filter_map(|report| report.world_size).max();
        // The least healthy state comes first.
        let order = [
            "FAILED",
            "UNHEALTHY",
            "INIT",
            "STOPPED",
            "UNKNOWN",
            "HEALTHY",
        ];
        let states = reports.iter().map(|report| report.state.as_str());
        let state = states.min_by_key(|state| {
            let place = order.iter().position(|known| known == state);
            place.unwrap_or(order.len())
        });
        json!({
            "id": reports[0].run_id,
            "nodes": reports.iter().filter_map(|report| report.group_world_size).max(),
            "agents_here": reports.iter().map(|report| report.agent_pid).collect::<Vec<_>>(),
            "ranks": world,
            "running_here": workers().filter(|worker| worker.running).count(),
            "state": state,
            "age_seconds": (now - began).round(),
            "restarts": reports.iter().map(|report| report.job_restarts).max(),
            "max_restarts": reports.iter().map(|report| report.max_restarts).max(),
        })
    });
    jobs.collect()
}

fn table(jobs: &[Value]) -> String {
    let head = ["JOB", "NODES", "RANKS", "HERE", "STATE", "AGE", "RESTARTS"].map(str::to_owned);
    let number = |value: &Value| value.as_u64().map_or("-".to_owned(), |it| it.to_string());
    let rows = jobs.iter().map(|job| {
        let restarts = format!(
            "{}/{}",
            number(&job["restarts"]),
            number(&job["max_restarts"])
        );
        [
            escape(job["id"].as_str().unwrap_or_default()),
            number(&job["nodes"]),
            number(&job["ranks"]),
            number(&job["running_here"]),
            job["state"].as_str().unwrap_or("-").to_lowercase(),
            age(job["age_seconds"].as_f64().unwrap_or(0.0)),
            restarts,
        ]
    });
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..7).map(|column| width(column).unwrap_or(0)).collect();
    let lines = rows.iter().map(|row| {
        let cells = row.iter().zip(&widths);
        let line: String = cells
            .map(|(cell, width)| format!("{cell:width$}  "))
            .collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

/// Returns a duration in two units at most: `42s`, `3m05s`, `2h07m`, `3d04h`.
pub(crate) fn age(seconds: f64) -> String {
    let seconds = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{:02}s", seconds % 60),
        (0, ..) => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_of_one_job_are_one_line_with_the_least_healthy_state() {
        let report = |run_id: &str, state: &str, began| NodeReport {
            run_id: run_id.to_owned(),
            state: state.to_owned(),
            group_world_size: Some(3),
            world_size: Some(24),
            began: Some(began),
            ..NodeReport::default()
        };
        let reports = [
            report("a", "HEALTHY", 1000.0),
            report("a", "INIT", 900.0),
            report("b\u{1b}[2J", "HEALTHY", 4000.0),
        ];
        let text = table(&jobs(&reports, 5000.0));
        let expected = "\
JOB         NODES  RANKS  HERE  STATE    AGE     RESTARTS
a           3      24     0     init     1h08m   0/0
b\\u{1b}[2J  3      24     0     healthy  16m40s  0/0
";
        assert_eq!(text, expected);
    }
}
