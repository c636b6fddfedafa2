//! Tests of the verdict on a run: text, report file and exit code.

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Ended, free_port, rdzv, run_fixture, run_shell};

/// Shell script in which rank 1 prints a Python traceback while rank 0 waits.
const EXCEPTION: &str = r#"test $RANK = 0 && sleep 1000
echo 'Traceback (most recent call last):' >&2
echo '  File "train.py", line 7, in <module>' >&2
echo 'ValueError: loss is NaN' >&2
echo 'still flushing' >&2
exit 1"#;

/// Returns the report that the run has written.
pub(crate) fn report(ended: &Ended) -> Value {
    ended.json("report.json")
}

/// Returns the lines of the verdict on stderr.
fn verdict_lines(ended: &Ended) -> Vec<&str> {
    let lines = ended.stderr.lines();
    lines.filter(|line| line.starts_with("rdzv: ")).collect()
}

#[test]
fn an_exception_is_named_with_nothing_but_the_default_flags() {
    let flags = "--nproc-per-node=2 --report=report.json";
    let ended = run_shell(flags, EXCEPTION).expect(1);
    let lines = verdict_lines(&ended);
    assert!(
        lines[0].starts_with("rdzv: first failure: rank 1 (local rank 1, pid ")
            && lines[0].contains(", exit code 1) on ")
            && lines[0].ends_with("Z: ValueError: loss is NaN"),
        "{lines:?}"
    );
    let other = "rdzv: 1 more: rank 0: exit code -15 (SIGTERM), stopped by the agent";
    assert_eq!(lines[1..], [other]);
    // The launcher prints the worker's text unchanged, before the failure report.
    let words = "line 7, in <module>\nValueError: loss is NaN\nstill flushing\n";
    let said = ended.stderr.find(words).unwrap();
    assert!(said < ended.stderr.find("failed (exitcode: 1)").unwrap());
    assert_eq!(ended.stderr.matches("ValueError: loss is NaN").count(), 2);
    let report = report(&ended);
    assert_eq!(report["version"], 1);
    assert_eq!(report["outcome"], "failed");
    assert_eq!(report["exit_code"], 1);
    assert_eq!(report["title"], "sh");
    assert_eq!(report["error"], Value::Null);
    let first = &report["first_failure"];
    for name in ["rank", "local_rank", "exit_code"] {
        assert_eq!(first[name], 1, "{name}");
    }
    assert_eq!(first["cause"]["kind"], "exception");
    assert_eq!(first["cause"]["text"], "ValueError: loss is NaN");
    assert_eq!(first["stderr_tail"][3], "still flushing");
    let traceback = first["traceback"].as_str().unwrap();
    assert!(traceback.ends_with("\nValueError: loss is NaN"));
    let time = first["time"].as_str().unwrap();
    assert_eq!(time.len(), "2031-05-06T07:08:09.123456Z".len(), "{time}");
    assert_eq!(report["failures"][0]["secondary"], false);
    assert_eq!(report["failures"][1]["secondary"], true);
    assert_eq!(report["failures"][1]["cause"]["kind"], "stopped_by_agent");
}

#[test]
fn stderr_that_went_to_a_file_only_is_shown() {
    let ended = run_shell("-r2 --nproc-per-node=2", EXCEPTION).expect(1);
    let tail = "rdzv: the last lines of its stderr:\n    Traceback (most recent call last):\n";
    ended.assert_stderr(tail);
    let teed = run_shell("-t2 --nproc-per-node=2", EXCEPTION).expect(1);
    assert!(!teed.stderr.contains("the last lines"), "{}", teed.stderr);
    assert!(verdict_lines(&teed)[0].ends_with("ValueError: loss is NaN"));
}

#[test]
fn a_bare_stderr_is_the_launchers_own() {
    let script = "readlink /proc/self/fd/2; echo oh >&2; exit 3";
    let ended = run_shell("--bare-stderr", script).expect(1);
    let bare = ended.stdout.trim().to_owned();
    assert!(verdict_lines(&ended)[0].ends_with(": exited with code 3"));
    let script = &format!("test $(readlink /proc/self/fd/2) != '{bare}' && exit 3; exit 4");
    let ended = run_shell("", script).expect(1);
    assert!(verdict_lines(&ended)[0].ends_with(": exited with code 3"));
}

#[test]
fn a_flood_on_stderr_arrives_whole_and_only_its_end_is_kept() {
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i >&2; i=$((i+1)); done; exit 5";
    let ended = run_shell("--report=report.json", script).expect(1);
    let lines = ended.stderr.lines();
    let lines = lines.filter(|line| line.starts_with("line "));
    assert!(lines.eq((0..20_000).map(|line| format!("line {line}"))));
    let tail = &report(&ended)["first_failure"]["stderr_tail"];
    let tail = tail.as_array().unwrap();
    assert_eq!(tail.last().unwrap(), "line 19999");
    assert!(tail.len() <= 200);
}

#[test]
fn a_worker_that_reads_no_stderr_of_its_own_may_leave_it_to_a_child() {
    // The child keeps the pipe open after the worker's exit, and is killed with the group.
    let ended = run_shell("", "sleep 1000 & echo bye >&2; exit 0").run();
    ended.expect(0);
}

#[test]
fn a_report_is_written_however_the_run_ends() {
    let with_report = "--report=report.json --rdzv-id=job";
    let ended = run_shell(with_report, "true").expect(0);
    let good = report(&ended);
    assert_eq!(good["outcome"], "succeeded");
    assert_eq!(good["exit_code"], 0);
    assert_eq!(good["run_id"], "job");
    assert_eq!(good["first_failure"], Value::Null);

    let running = run_shell(with_report, "echo on; sleep 1000").start();
    running.stdout.await_text("on\n", 1);
    running.signal(Signal::TERM);
    let stopped = report(&running.wait().expect(1));
    assert_eq!(stopped["outcome"], "signalled");
    let error = stopped["error"].as_str().unwrap();
    assert!(error.ends_with("got signal: 15"), "{error}");

    let line = "run --report=report.json --no-python no-such-program";
    let missing = rdzv(line.split(' '));
    let missing = report(&missing.expect(1));
    assert_eq!(missing["outcome"], "error");
    assert_eq!(missing["first_failure"]["cause"]["kind"], "not_started");
    assert_eq!(missing["first_failure"]["local_rank"], 0);

    let refused = rdzv(["run", "--report=report.json", "--nnodes=a", "train.py"]);
    let refused = report(&refused.expect(1));
    assert_eq!(refused["outcome"], "error");
    assert_eq!(refused["exit_code"], 1);
    let error = refused["error"].as_str().unwrap();
    assert!(error.starts_with("ValueError: "), "{error}");

    let killed = run_shell(with_report, "kill -KILL $PPID; sleep 1000").expect(-9);
    killed.assert_stderr("rdzv: the agent was killed by SIGKILL");
    let killed = report(&killed);
    assert_eq!(killed["first_failure"]["cause"]["kind"], "agent_error");
    assert_eq!(killed["run_id"], "job");
    assert_eq!(killed["title"], "sh");
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_anything_runs() {
    let ended = run_shell("--report=none/report.json", "echo ran").expect(2);
    assert_eq!(ended.stdout, "");
    ended.assert_last_error(
        "rdzv run: error: argument --report: ",
        &["none/report.json: No such file"],
    );
}

#[test]
fn a_report_replaces_the_one_before_and_a_relative_path_survives_the_workers_ways() {
    let job = run_shell("--report=report.json", "cd /; exit 3").file("report.json", "old");
    let ended = job.expect(1);
    assert_eq!(report(&ended)["first_failure"]["exit_code"], 3);
    let left = ended.files_below(".");
    assert_eq!(left, [std::path::PathBuf::from("report.json")]);
}

#[test]
fn a_scheduler_may_have_the_workers_exit_code() {
    for (flags, script, code) in [
        ("", "exit 0", 0),
        (
            "--nproc-per-node=2",
            "test $RANK = 0 && sleep 1000; exit 77",
            77,
        ),
        ("", "kill -SEGV $$$$", 139),
        (
            "--max-restarts=1",
            "exit $((8 + TORCHELASTIC_RESTART_COUNT))",
            9,
        ),
    ] {
        run_shell(("--exit-code=worker", flags), script).expect(code);
    }
    let missing = "run --exit-code worker --no-python no-such-program";
    rdzv(missing.split(' ')).expect(127);
    let alone = "--exit-code worker --nnodes 2 --rdzv-backend static --rdzv-conf timeout=1";
    let endpoint = format!("--rdzv-endpoint=127.0.0.1:{}", free_port());
    run_shell((alone, &*endpoint), "exit 0").expect(75);
    let running = run_shell("--exit-code=worker", "echo on; sleep 1000").start();
    running.stdout.await_text("on\n", 1);
    running.signal(Signal::TERM);
    running.wait().expect(143);
    let ended = run_shell("--exit-code=both", "exit 0").expect(2);
    ended.assert_last_error("", &["neither launcher nor worker"]);
}

#[test]
fn the_environment_may_ask_for_both() {
    let job = run_shell("", "exit 6").env("PET_REPORT", "report.json");
    let ended = job.env("PET_EXIT_CODE", "worker").expect(6);
    assert_eq!(report(&ended)["exit_code"], 6);
}

#[test]
fn a_recorded_error_says_more_than_stderr() {
    let steps = [
        "err:noise",
        "error:RuntimeError: shapes do not match",
        "exit:1",
    ];
    let ended = run_fixture("--report=report.json", &steps).expect(1);
    let first = &report(&ended)["first_failure"];
    assert_eq!(first["cause"]["text"], "RuntimeError: shapes do not match");
    let file = first["error_file"].as_str().unwrap();
    assert!(file.ends_with("/0/error.json"), "{file}");
}
