//! Tests of events: torchelastic's on the console, and all events in a file.

use serde_json::Value;

use crate::harness::{run_fixture, run_shell};

fn parsed(text: &str) -> Vec<Value> {
    text.lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn metrics_are_lines_on_stdout_among_those_of_the_workers() {
    let flags = "--metrics-handler=console --max-restarts=1";
    let ended = run_shell(flags, "echo at work; exit 3").expect(1);
    let (points, others): (Vec<&str>, Vec<&str>) =
        ended.stdout.lines().partition(|line| line.starts_with('['));
    assert_eq!(others, ["at work"; 2]);
    let names = points.iter().map(|line| {
        let (head, point) = line.split_once("]: ").unwrap();
        let (time, group) = head.split_once("][").unwrap();
        assert!(time[1..].parse::<f64>().unwrap() > 1e9, "{line}");
        assert_eq!(group, "torchelastic");
        point.split_once('=').unwrap().0
    });
    let failures = names.filter(|name| *name == "workers.default.failed");
    assert_eq!(failures.count(), 2, "{}", ended.stdout);
    let null = run_shell("--metrics-handler=null", "true").run();
    assert_eq!(null.expect(0).stdout, "");
}

#[test]
fn a_metrics_handler_that_is_none_is_refused() {
    let ended = run_shell("--metrics-handler=statsd", "true").expect(2);
    let text = "argument --metrics-handler: 'statsd' is neither console nor null";
    ended.assert_stderr(text);
}

// SCN-A50
#[test]
fn a_restart_and_a_failure_are_recorded_as_torchelastic_records_them() {
    let ended = run_shell(
        "--nproc-per-node=2 --max-restarts=1 --event-log-handler=console",
        "exit 3",
    )
    .expect(1);
    let events = parsed(&ended.stderr);
    let states: Vec<String> = events
        .iter()
        .map(|event| {
            let name = event["name"].as_str().unwrap();
            let state = name.strip_prefix("torchelastic.worker.status.").unwrap();
            assert_eq!(event["metadata"]["state"], state);
            format!("{} {state}", event["source"].as_str().unwrap())
        })
        .collect();
    let attempt = [
        "AGENT RENDEZVOUS",
        "AGENT ASSIGN_WORKER_RANKS",
        "WORKER START",
        "WORKER START",
    ];
    // The agent may stop a worker because its sibling failed first. The state of the worker then
    // differs, but the sequence of events is the same.
    let last = ["WORKER FAILED", "WORKER FAILED", "AGENT SUCCEEDED"];
    assert_eq!(states, [&attempt[..], &attempt, &last].concat());
    let keys =
        |value: &Value| -> Vec<String> { value.as_object().unwrap().keys().cloned().collect() };
    for event in &events {
        assert_eq!(keys(event), sorted("name source timestamp metadata"));
        let mut wanted = sorted(
            "run_id global_rank group_rank worker_id role hostname state total_run_time \
             rdzv_backend raw_error metadata agent_restarts duration_ms",
        );
        if event["name"] == "torchelastic.worker.status.SUCCEEDED" {
            wanted = sorted(&format!("outcome {}", wanted.join(" ")));
        }
        assert_eq!(keys(&event["metadata"]), wanted);
        let details = event["metadata"]["metadata"].as_str().unwrap();
        let details: Value = serde_json::from_str(details).unwrap();
        let more = "local_rank role_rank role_world_size exit_code worker_pid";
        let wanted = match event["source"].as_str() {
            Some("WORKER") => sorted(&format!("group_world_size entry_point {more}")),
            _ => sorted("group_world_size entry_point"),
        };
        assert_eq!(keys(&details), wanted);
    }
    assert_eq!(events[8]["metadata"]["agent_restarts"], 1);
    // The events report both: the agent did its work, and the workers failed.
    assert_eq!(events[10]["metadata"]["outcome"], "FAILED");
}

fn sorted(words: &str) -> Vec<String> {
    let mut words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn a_file_gets_every_event_and_keeps_what_is_in_it() {
    let ended = run_fixture(
        "--max-restarts=1 --rdzv-id=job --redirects=3 --log-dir=logs --events-file=events.jsonl",
        "attempt=0?exit:3 exit:0",
    )
    .file("events.jsonl", "{\"name\":\"before\"}\n")
    // The level hides only the events of torchelastic.
    .env("LOGLEVEL", "ERROR")
    .expect(0);
    let text = ended.text("events.jsonl");
    let events = parsed(&text);
    assert_eq!(text.lines().count(), events.len());
    let attempt = [
        "rendezvous_began",
        "rendezvous",
        "ranks_assigned",
        "worker_started",
    ];
    let mut expected = vec!["before"];
    expected.extend(attempt);
    expected.extend(["worker_exited", "restarting"]);
    expected.extend(attempt);
    expected.extend([
        "restarted",
        "worker_exited",
        "worker_final",
        "verdict",
        "agent_final",
    ]);
    let names = events.iter().map(|event| event["name"].as_str().unwrap());
    let recorded = names.filter(|name| *name != "state_changed");
    assert_eq!(recorded.collect::<Vec<_>>(), expected);
    let states: Vec<&str> = events
        .iter()
        .filter(|event| event["name"] == "state_changed")
        .map(|event| event["fields"]["state"].as_str().unwrap())
        .collect();
    assert_eq!(
        states,
        ["HEALTHY", "STOPPED", "INIT", "HEALTHY", "SUCCEEDED"]
    );
    let mut last = String::new();
    for event in &events[1..] {
        assert_eq!(event["run_id"], "job");
        let time = event["time"].as_str().unwrap();
        assert_eq!(time.len(), "2026-11-21T06:09:09.123456Z".len());
        assert!(time >= &*last, "{time} comes after {last}");
        time.clone_into(&mut last);
    }
    let exited = events.iter().find(|event| event["name"] == "worker_exited");
    assert_eq!(exited.unwrap()["fields"]["exit_code"], 3);
    let started = &events[4]["fields"];
    let stdout = started["stdout"].as_str().unwrap();
    assert!(stdout.ends_with("/attempt_0/0/stdout.log"), "{stdout}");
}

#[test]
fn a_pipe_that_nobody_reads_is_refused_and_holds_up_nothing() {
    let job = run_shell("--events-file=pipe", "true").pipe("pipe");
    job.expect(1).assert_stderr("--events-file");
}
