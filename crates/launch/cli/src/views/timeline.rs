//! `rdzv timeline`: the past of a job, from the events files of its nodes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use jiff::Timestamp;
use rdzv_agent::launcher::host::HostName;
use rdzv_agent::observe::NodeReport;
use rdzv_core::escape::escape;
use serde::Deserialize;
use serde_json::Value;

use super::client::{ViewError, ended};
use super::job::{Job, Message, parse};
use super::{perfetto, web};
use crate::terminal::show;

/// Write the timeline of a job from the events files of its nodes.
///
/// `rdzv run --events-file` writes these files. The clocks of the nodes may differ. All agents of a
/// round learn of it at the same time, so the command aligns the clocks by the common rounds.
#[derive(Debug, Args)]
pub(crate) struct TimelineArgs {
    /// Events files of the nodes.
    #[arg(required = true, value_name = "EVENTS")]
    files: Vec<PathBuf>,

    /// Write the page of the job, replayed, to this HTML file.
    #[arg(long, short, value_name = "FILE", required_unless_present = "perfetto")]
    output: Option<PathBuf>,

    /// Write a trace for ui.perfetto.dev to this file.
    #[arg(long, value_name = "FILE")]
    perfetto: Option<PathBuf>,
}

/// One line of an events file.
#[derive(Debug, Clone, Deserialize)]
struct Record {
    name: String,
    time: String,
    run_id: String,
    node: String,
    fields: Value,
    #[serde(skip)]
    at: f64,
}

/// Reads the files and writes the timeline.
pub(crate) fn run(arguments: &TimelineArgs) -> ExitCode {
    ended("timeline", write(arguments))
}

fn write(arguments: &TimelineArgs) -> Result<(), ViewError> {
    let mut records = BTreeMap::new();
    for path in &arguments.files {
        let text = fs::read_to_string(path);
        let text = text.map_err(|error| wrong("read", path, &error))?;
        read(path, &text, &mut records)?;
    }
    let (job, offsets) = replay(records)?;
    let save = |path: &Path, bytes: &[u8]| {
        fs::write(path, bytes).map_err(|error| wrong("write", path, &error))
    };
    if let Some(path) = &arguments.output {
        save(path, web::page(Some(&job)).as_bytes())?;
    }
    if let Some(path) = &arguments.perfetto {
        save(path, &perfetto::trace(&job))?;
    }
    let clocks = offsets.iter().map(|(name, offset)| {
        let offset = offset.map_or("not aligned: no common round".to_owned(), |offset| {
            format!("{offset:+.3} s")
        });
        format!("clock of {name}: {offset}\n")
    });
    show(&clocks.collect::<String>());
    Ok(())
}

fn wrong(action: &str, path: &Path, error: &impl std::fmt::Display) -> ViewError {
    ViewError::Selection(format!("cannot {action} {}: {error}", path.display()))
}

/// Adds the events of a file to those of its nodes.
fn read(
    path: &Path,
    text: &str,
    records: &mut BTreeMap<String, Vec<Record>>,
) -> Result<(), ViewError> {
    let number = records.len();
    for (line, text) in (1..)
        .zip(text.lines())
        .filter(|(_, text)| !text.trim().is_empty())
    {
        let parsed = serde_json::from_str(text).map_err(|error| error.to_string());
        let parsed = parsed.and_then(|mut record: Record| {
            let at: Timestamp = record.time.parse().map_err(|error| format!("{error}"))?;
            record.at = at.as_microsecond() as f64 / 1e6;
            Ok(record)
        });
        let record = parsed.map_err(|error| {
            let error = format!("line {line} is not an event of rdzv: {}", escape(&error));
            wrong("read", path, &error)
        })?;
        // Two agents of one host write two files.
        let name = format!("{}/{number}", escape(&record.node));
        records.entry(name).or_default().push(record);
    }
    Ok(())
}

/// Correction of each clock to the first one; `None` without a common round.
type Offsets = Vec<(String, Option<f64>)>;

/// Returns the job at its end.
fn replay(records: BTreeMap<String, Vec<Record>>) -> Result<(Job, Offsets), ViewError> {
    let mut ids: Vec<&str> = records
        .values()
        .flatten()
        .map(|it| it.run_id.as_str())
        .collect();
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != 1 {
        let ids = ids.join(", ");
        let text = if ids.is_empty() {
            "the files contain no events".to_owned()
        } else {
            format!("the events are from several runs: {}", escape(&ids))
        };
        return Err(ViewError::Selection(text));
    }
    let offsets = offsets(&records);
    let mut job = Job::default();
    for (name, records) in &records {
        let offset = offsets.get(name.as_str()).copied().unwrap_or(0.0);
        let mut report = NodeReport {
            run_id: escape(&records[0].run_id),
            node: HostName::Given(escape(&records[0].node)),
            ..NodeReport::default()
        };
        for record in records {
            report.replay(&record.name, record.at + offset, &record.fields);
        }
        let value = serde_json::to_vec(&Message {
            from: name.clone(),
            is_whole: true,
            change: serde_json::to_value(report).ok(),
            ..Message::default()
        });
        // Parsing escapes all texts of the files.
        if let Some(message) = value.ok().and_then(|value| parse(&value).ok()) {
            job.take(message);
        }
    }
    let names = records.keys().map(|name| {
        let report = job.agents.get(name).map(|agent| &agent.report);
        let rank = report.and_then(|report| report.group_rank);
        let rank = rank.map_or_else(String::new, |rank| format!(" (group rank {rank})"));
        let (host, _) = name.rsplit_once('/').unwrap_or((name, ""));
        (format!("{host}{rank}"), offsets.get(name.as_str()).copied())
    });
    let names = names.collect();
    Ok((job, names))
}

/// Returns the time to add to each clock to get that of the first node.
///
/// It is the median over the rounds that two nodes have in common. Each node is compared with one
/// of the nodes whose times are known: the one with which it has the most rounds in common.
fn offsets(records: &BTreeMap<String, Vec<Record>>) -> BTreeMap<&str, f64> {
    let rounds: BTreeMap<&str, BTreeMap<u64, f64>> = records
        .iter()
        .map(|(name, records)| {
            let assigned = records.iter().filter(|it| it.name == "ranks_assigned");
            let rounds = assigned.filter_map(|it| Some((it.fields["round"].as_u64()?, it.at)));
            (name.as_str(), rounds.collect())
        })
        .collect();
    let mut known: BTreeMap<&str, f64> = BTreeMap::new();
    known.extend(rounds.keys().next().map(|name| (*name, 0.0)));
    loop {
        let next = rounds.iter().find_map(|(name, own)| {
            if known.contains_key(name) {
                return None;
            }
            let shared = known.iter().map(|(other, offset)| {
                let times = own
                    .iter()
                    .filter_map(|(round, at)| Some(rounds.get(other)?.get(round)? + offset - at));
                times.collect::<Vec<f64>>()
            });
            let mut best = shared.max_by_key(Vec::len).filter(|it| !it.is_empty())?;
            best.sort_by(f64::total_cmp);
            Some((*name, best[best.len() / 2]))
        });
        match next {
            Some((name, offset)) => known.insert(name, offset),
            None => return known,
        };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the events of a node of a job that restarted once.
    pub(in crate::views) fn events(node: &str, group_rank: u32, clock: f64) -> String {
        let line = |name: &str, at: f64, fields: &str| {
            let micros = ((1_700_000_000.0 + clock + at) * 1e6) as i64;
            let time = Timestamp::from_microsecond(micros).unwrap();
            format!(
                r#"{{"name":"{name}","time":"{time:.6}","run_id":"job","node":"{node}","fields":{fields}}}"#
            ) + "\n"
        };
        let jitter = f64::from(group_rank) * 0.002;
        let assigned = |round| {
            format!(
                r#"{{"round":{round},"group_rank":{group_rank},"group_world_size":3,"world_size":3,"master_addr":"a","master_port":1}}"#
            )
        };
        let worker = |pid| format!(r#"{{"rank":{group_rank},"local_rank":0,"pid":{pid}}}"#);
        let exited = |pid, code| {
            format!(
                r#"{{"rank":{group_rank},"pid":{pid},"exit_code":{code},"stopped_by_agent":false}}"#
            )
        };
        [
            line("rendezvous_began", 0.0, r#"{"restart_count":0}"#),
            line("ranks_assigned", 1.0 + jitter, &assigned(0)),
            line("worker_started", 1.1, &worker(10)),
            line("worker_exited", 3.0, &exited(10, -9)),
            line("restarting", 3.1, r#"{"state":"FAILED"}"#),
            line("rendezvous_began", 3.2, r#"{"restart_count":1}"#),
            line("ranks_assigned", 4.0, &assigned(1)),
            line("worker_started", 4.1, &worker(11)),
            line("worker_exited", 9.0, &exited(11, 0)),
            line("agent_final", 9.1, "{}"),
        ]
        .concat()
    }

    pub(in crate::views) fn job(clocks: &[(&str, f64)]) -> (Job, Offsets) {
        let mut records = BTreeMap::new();
        for (rank, (node, clock)) in (0..).zip(clocks) {
            let text = events(node, rank, *clock);
            read(Path::new("events"), &text, &mut records).unwrap();
        }
        replay(records).unwrap()
    }

    #[test]
    fn clocks_an_hour_apart_are_aligned_by_the_rounds() {
        let (job, offsets) = job(&[("a", 0.0), ("b", 3600.0), ("c", -1800.0)]);
        for ((_, offset), expected) in offsets.iter().zip([0.0, -3600.0, 1800.0]) {
            assert!((offset.unwrap() - expected).abs() < 0.01, "{offsets:?}");
        }
        let ends = job.agents.values().map(|agent| {
            let spans = agent.report.spans.iter();
            spans.filter_map(|span| span.end).fold(0.0, f64::max)
        });
        let ends: Vec<f64> = ends.collect();
        assert!(
            ends.iter().all(|end| (end - ends[0]).abs() < 0.01),
            "{ends:?}"
        );
        let names = job.agents["a/0"]
            .report
            .spans
            .iter()
            .map(|span| &*span.name);
        let expected = [
            "waits for nodes",
            "round 0, 3 nodes",
            "pid 10, signal 9",
            "restart",
            "waits for nodes",
            "round 1, 3 nodes",
            "pid 11, exit code 0",
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn files_of_two_runs_and_other_files_are_refused() {
        let mut records = BTreeMap::new();
        let error = read(Path::new("x"), "{}\n", &mut records).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("cannot read x: line 1 is not an event of rdzv: "),
            "{text}"
        );
        let other = events("b", 1, 0.0).replace("\"job\"", "\"other\"");
        let text = events("a", 0, 0.0) + &other;
        read(Path::new("x"), &text, &mut records).unwrap();
        let text = replay(records).unwrap_err().to_string();
        assert_eq!(text, "the events are from several runs: job, other");
    }

    #[test]
    fn texts_in_the_page_cannot_end_its_script() {
        let (mut job, _) = job(&[("a", 0.0)]);
        let agent = job.agents.values_mut().next().unwrap();
        agent.value["failure"] = serde_json::json!({
            "cause": "</script><img src=x onerror=alert(1)>{{nonce}}",
        });
        let page = web::page(Some(&job));
        assert!(!page.contains("<img"));
        assert!(page.contains("\\u003c/script>\\u003cimg src=x onerror=alert(1)>{{nonce}}"));
        for outside in [
            "src=\"",
            "href=\"",
            "url(",
            "@import",
            "innerHTML",
            "insertAdjacentHTML",
        ] {
            assert!(!page.contains(outside), "{outside}");
        }
    }
}
