//! Tests of the times of restarts, against the workers' own times.

use jiff::Timestamp;
use serde_json::Value;

use crate::harness::run_shell;

/// Returns a time of an event in seconds since the Unix epoch.
pub(crate) fn seconds_of(time: &Value) -> f64 {
    let time: Timestamp = time.as_str().unwrap().parse().unwrap();
    time.as_microsecond() as f64 / 1e6
}

const RESTARTS: usize = 10;

/// Limit on the median difference between a worker and the agent, in seconds.
const NEAR: f64 = 0.1;

#[test]
fn ten_restarts_have_the_times_that_the_workers_have() {
    let ended = run_shell(
        "--max-restarts=10 --heartbeat-timeout=step=100 --events-file=events.jsonl \
         --report=report.json",
        "date +%s.%N >> starts; echo step $TORCHELASTIC_RESTART_COUNT > $RDZV_HEARTBEAT\n\
         sleep 0.05; [ $TORCHELASTIC_RESTART_COUNT = 10 ] && exit 0\n\
         date +%s.%N >> ends; kill -9 $$$$",
    )
    .expect(0);
    let stamps = |name: &str| -> Vec<f64> {
        let text = ended.text(name);
        text.lines().map(|line| line.parse().unwrap()).collect()
    };
    let (starts, ends) = (stamps("starts"), stamps("ends"));
    let events = ended.text("events.jsonl");
    let events = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let restarts: Vec<Value> = events
        .filter(|event: &Value| event["name"] == "restarted")
        .map(|event| event["fields"].clone())
        .collect();
    assert_eq!((restarts.len(), starts.len()), (RESTARTS, RESTARTS + 1));
    let mut differences = Vec::new();
    for (index, restart) in restarts.iter().enumerate() {
        let names = [
            "failure_detected",
            "worker_terminated",
            "rendezvous_started",
            "rendezvous_completed",
            "worker_start_started",
            "worker_start_completed",
        ];
        let times = names.map(|name| seconds_of(&restart[name]));
        assert!(times.is_sorted(), "{restart}");
        let span = |name: &str| restart["seconds"][name].as_f64().unwrap();
        let spans = span("stop") + span("rendezvous") + span("start");
        assert!((spans - (times[5] - times[0])).abs() < 1e-4, "{restart}");
        assert_eq!(
            (span("detect"), &restart["reason"]),
            (0.0, &"failure".into())
        );
        assert!(
            ends[index] <= times[0] && times[4] <= starts[index + 1],
            "{restart}"
        );
        differences.push(times[0] - ends[index]);
        differences.push((starts[index + 1] - times[5]).abs());
    }
    differences.sort_by(f64::total_cmp);
    assert!(differences[RESTARTS] < NEAR, "{differences:?}");
    let rows = ended.json("report.json")["restarts"].clone();
    let steps = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["first_step"]);
    assert!(
        steps.clone().all(|step| step.as_f64().unwrap() >= 0.0),
        "{rows}"
    );
    assert_eq!(steps.count(), RESTARTS);
}

#[test]
fn a_hang_that_leads_to_a_restart_has_a_time_of_detection() {
    let ended = run_shell(
        "--max-restarts=1 --heartbeat-timeout=step=0.5 --hang-action=restart \
         --report=report.json",
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; echo step 1 > $RDZV_HEARTBEAT; sleep 1000",
    )
    .expect(0);
    let report = ended.json("report.json");
    let detect = report["restarts"][0]["detect"].as_f64().unwrap();
    assert!(detect >= 0.5, "{report}");
    assert!(report["seconds"]["stalled"].as_f64().is_some(), "{report}");
}

#[test]
fn a_heartbeat_ends_a_reported_hang() {
    let ended = run_shell(
        "--heartbeat-timeout=step=0.5 --events-file=events.jsonl",
        "echo step 1 > $RDZV_HEARTBEAT\n\
         until grep -q '\"hang\"' events.jsonl; do sleep 0.05; done\n\
         echo done > $RDZV_HEARTBEAT\n\
         until grep -q '\"hang_over\"' events.jsonl; do sleep 0.05; done",
    );
    ended.expect(0);
}
