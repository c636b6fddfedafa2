//! Tests of failed workers: report, error files, restarts, remaining processes.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Ended, run_fixture, run_shell};

/// Line above the first failure.
const ROOT: &str = "Root Cause (first observed failure):";

/// Returns the failure block without values that differ between runs.
///
/// These values are times, hosts and process ids.
fn report(ended: &Ended) -> String {
    let header = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ";
    let start = ended.stderr.find(header);
    let start = start.unwrap_or_else(|| panic!("no report:\n{}", ended.stderr));
    let mut text = String::new();
    for line in ended.stderr[start..].lines() {
        let masked = if line.starts_with("  time ") || line.starts_with("  host ") {
            line[..14].to_owned() + "…"
        } else {
            let digits = |part: &str| part.find(|letter: char| !letter.is_ascii_digit());
            ["(pid: ", "PID "]
                .iter()
                .fold(line.to_owned(), |line, before| {
                    match line.split_once(before) {
                        Some((left, right)) => {
                            let rest = &right[digits(right).unwrap_or(right.len())..];
                            format!("{left}{before}…{rest}")
                        }
                        None => line,
                    }
                })
        };
        // Blanks at ends of lines are part of the layout.
        text += &masked
            .strip_suffix(' ')
            .map_or(masked.clone(), |line| format!("{line}¶"));
        text += "\n";
    }
    text
}

// SCN-A19
#[test]
fn the_worker_that_failed_is_the_root_cause_and_its_sibling_is_listed() {
    let ended = run_fixture("--nproc-per-node 2", "rank=1?exit:7 hang").expect(1);
    let text = report(&ended).replace(crate::harness::fixture_worker().to_str().unwrap(), "worker");
    insta::assert_snapshot!(text);
    let lines = ended.stderr.lines();
    let detected = lines.filter(|line| line.contains("failed (exitcode: 7) local_rank: 1 (pid: "));
    assert_eq!(detected.count(), 1, "{}", ended.stderr);
    ended.assert_stderr(" closing signal SIGTERM\n");
}

// SCN-A20
#[test]
fn a_signal_is_named() {
    let ended = run_fixture("--nproc-per-node 2", "rank=1?signal:11 hang").expect(1);
    let text = report(&ended);
    let (_, root) = text.split_once(ROOT).unwrap();
    for line in [
        "  exitcode  : -11 (pid: …)  (SIGSEGV)\n",
        "  traceback : Signal 11 (SIGSEGV) received by PID …\n",
    ] {
        assert!(root.contains(line), "{text}");
    }
}

// SCN-A21, SCN-A22
#[test]
fn a_recorded_exception_is_shown_and_handed_on() {
    let job = run_fixture("--log-dir logs", &["error:ValueError: boom", "exit:1"]);
    let ended = job.env("TORCHELASTIC_ERROR_FILE", "p.json").expect(1);
    let text = report(&ended);
    assert!(text.contains("/attempt_0/0/error.json\n"), "{text}");
    assert!(text.contains("ValueError: boom"), "{text}");
    let recorded = ended.content("logs", "error.json");
    let mut expected: Value = serde_json::from_str(&recorded).unwrap();
    assert!(expected["message"]["extraInfo"]["timestamp"].is_string());
    expected["message"]["errorCode"] = 1.into();
    assert_eq!(ended.json("p.json"), expected);
}

// SCN-A23
#[test]
fn a_plain_error_file_gives_time_and_text_and_is_copied_unchanged() {
    let content = r#"{"message":"m","timestamp":"1700000000"}"#;
    let job = run_fixture("", &[&format!("error-file:{content}"), "exit:4"]);
    let ended = job.env("TORCHELASTIC_ERROR_FILE", "p.json").expect(1);
    ended.assert_stderr("  time      : 2023-11-14_22:13:20\n");
    ended.assert_stderr("  traceback : m\n");
    assert_eq!(ended.text("p.json"), content);
}

// SCN-A24
#[test]
fn an_unreadable_error_file_stops_neither_restart_nor_report() {
    let steps = r#"env:TORCHELASTIC_RESTART_COUNT error-file:{"mess exit:4"#;
    let ended = run_fixture("--max-restarts 1", steps).expect(1);
    let counts = ended.stdout.replace("TORCHELASTIC_RESTART_COUNT=", "");
    assert_eq!(counts, "0\n1\n");
    let text = report(&ended);
    assert!(text.contains("exitcode  : 4 "), "{text}");
    assert!(text.contains("the error file was unreadable"), "{text}");
}

// SCN-A25
#[test]
fn a_sibling_that_obeys_and_exits_with_zero_is_no_failure() {
    let ended = run_fixture(
        "--nproc-per-node 2 --event-log-handler console",
        "rank=0?trap:15:0 rank=0?write:ready:x rank=1?await:ready rank=1?exit:7 hang",
    )
    .pipe("ready")
    .expect(1);
    assert!(report(&ended).contains("  <NO_OTHER_FAILURES>\n"));
    let states: Vec<String> = events(&ended)
        .iter()
        .map(|event| format!("{} {}", event["source"], event["metadata"]["state"]).replace('"', ""))
        .collect();
    for state in ["WORKER TERMINATED", "WORKER FAILED"] {
        assert!(states.iter().any(|known| known == state), "{states:?}");
    }
    assert_eq!(states.last().map(String::as_str), Some("AGENT SUCCEEDED"));
}

fn events(ended: &Ended) -> Vec<Value> {
    let lines = ended.stderr.lines().filter(|line| line.starts_with('{'));
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn events_have_the_names_keys_and_arrays_of_torchelastic() {
    let flags = "--event-log-handler console --rdzv-id job --role trn";
    let events = events(&run_shell(flags, "true").expect(0));
    let names = events.iter().map(|event| event["name"].as_str().unwrap());
    let states = names.map(|name| name.strip_prefix("torchelastic.worker.status.").unwrap());
    assert_eq!(
        states.collect::<Vec<_>>().join(" "),
        "RENDEZVOUS ASSIGN_WORKER_RANKS START SUCCEEDED SUCCEEDED"
    );
    for event in &events {
        assert!(event["timestamp"].as_i64().unwrap() > 1_700_000_000_000);
        let metadata = &event["metadata"];
        let keys = "run_id global_rank group_rank worker_id role hostname state total_run_time \
            rdzv_backend raw_error metadata agent_restarts duration_ms";
        for key in keys.split(' ') {
            assert!(metadata.get(key).is_some(), "{key} is missing: {event}");
        }
        assert_eq!(metadata["run_id"], "job");
        assert_eq!(metadata["role"], "trn");
    }
    assert!(events[0]["metadata"]["duration_ms"].is_f64());
    let details = events[2]["metadata"]["metadata"].as_str().unwrap();
    let details: Value = serde_json::from_str(details).unwrap();
    assert_eq!(details["entry_point"], "sh");
    assert_eq!(details["local_rank"], Value::from(vec![0]));
}

// SCN-A26
#[test]
fn every_attempt_has_its_count_and_its_directory() {
    let script = "echo $TORCHELASTIC_RESTART_COUNT; exit 3";
    let ended = run_shell("--max-restarts 2 -r 1 --log-dir logs", script).expect(1);
    let attempts = ended.files_below("logs");
    assert_eq!(attempts.len(), 3, "{attempts:?}");
    for (count, path) in attempts.iter().enumerate() {
        let name = format!("attempt_{count}/0/stdout.log");
        assert!(path.ends_with(&name), "{attempts:?}");
        assert_eq!(ended.content("logs", &name), format!("{count}\n"));
    }
}

// SCN-A32
#[test]
fn what_a_failed_worker_started_is_gone_before_the_next_attempt() {
    let ended = run_fixture(
        "--max-restarts 1",
        "attempt=0?child:write:started:x;hang attempt=0?orphan:write:started:x;hang attempt=0?await:started attempt=0?exit:3 child:exit:0 child:hang",
    )
    .pipe("started")
    .expect(0);
    assert_eq!(ended.stdout, "");
}

// SCN-A59
#[test]
fn the_first_to_exit_is_the_root_cause_every_time() {
    for run in 0..20 {
        let ended = run_fixture(
            "--nproc-per-node 4",
            "rank=3?write:0:x rank=3?write:1:x rank=3?write:2:x rank=3?exit:7 rank=0?await:0 rank=1?await:1 rank=2?await:2 pause:60 exit:5",
        )
        .pipe("0")
        .pipe("1")
        .pipe("2")
        .expect(1);
        let text = report(&ended);
        let (_, root) = text.split_once(ROOT).unwrap();
        for line in ["  rank      : 3 (local_rank: 3)", "  exitcode  : 7 "] {
            assert!(root.contains(line), "run {run}: {text}");
        }
    }
}

#[test]
fn a_failure_with_a_final_exit_code_uses_no_restart() {
    let flags = "--max-restarts 3 --final-exit-codes 3,-6 --report report.json";
    let (is_final, no_more) = ("not_retryable", "max_restarts_exceeded");
    // In arguments `$$` means `$`.
    for (ending, attempts, kind, text) in [
        ("exit 3", 1, is_final, "exit code 3 is not retryable"),
        ("kill -ABRT $$$$", 1, is_final, "SIGABRT is not retryable"),
        ("exit 4", 4, no_more, "exceeded max_restarts=3"),
    ] {
        let ended = run_shell(flags, &format!("echo attempt; {ending}")).expect(1);
        assert_eq!(ended.stdout, "attempt\n".repeat(attempts), "{ending}");
        let line = format!("\nrdzv: no restart: {text}\n");
        ended.assert_stderr(&line);
        assert_eq!(
            ended.json("report.json")["finality"],
            json!({ "kind": kind, "text": text })
        );
    }
}

#[test]
fn the_next_attempt_can_be_made_to_wait() {
    let began = Instant::now();
    let flags = "--max-restarts 1 --settle-delay 0.4";
    run_shell(flags, "exit 1").expect(1);
    assert!(began.elapsed() >= Duration::from_millis(400));
}
