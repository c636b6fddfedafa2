//! Tests of the workers' output: files, console, filters, prefixes.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use rdzv_testing::Words;

use crate::harness::{run_fixture, run_shell, shell};

/// Script of a worker that writes a line to each stream.
const BOTH: &str = "echo out $RANK; echo err $RANK >&2";

fn job(flags: impl Words, script: &str) -> crate::harness::Job {
    let flags = ("--nproc-per-node 2 --log-dir logs", flags);
    run_shell(flags, script).env("OMP_NUM_THREADS", "1")
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

// SCN-A34
#[test]
fn redirected_streams_are_in_files_only() {
    let ended = job("-r 3 --rdzv-id job", BOTH).expect(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    let paths = ended.files_below("logs");
    let run = paths[0].components().next().unwrap();
    let run = run.as_os_str().to_str().unwrap();
    assert!(
        run.starts_with("job_") && run.len() == "job_".len() + 8,
        "{run}"
    );
    let mode = ended.path("logs").join(run).metadata();
    assert_eq!(mode.unwrap().permissions().mode() & 0o777, 0o700);
    let expected: Vec<PathBuf> = ["0/stderr", "0/stdout", "1/stderr", "1/stdout"]
        .iter()
        .map(|name| format!("{run}/attempt_0/{name}.log").into())
        .collect();
    assert_eq!(paths, expected);
    assert_eq!(ended.content("logs", "0/stdout.log"), "out 0\n");
    assert_eq!(ended.content("logs", "1/stderr.log"), "err 1\n");
}

// SCN-A35
#[test]
fn teed_streams_are_in_files_and_prefixed_on_the_console() {
    let ended = job("-t 3", BOTH).expect(0);
    assert_eq!(ended.sorted(), ["[default0]:out 0", "[default1]:out 1"]);
    assert_eq!(
        sorted(&ended.stderr),
        ["[default0]:err 0", "[default1]:err 1"]
    );
    assert_eq!(ended.content("logs", "0/stderr.log"), "err 0\n");
    assert_eq!(ended.content("logs", "1/stdout.log"), "out 1\n");
}

// SCN-A36
#[test]
fn streams_can_be_chosen_by_rank() {
    let ended = job("-t 0:1,1:2", BOTH).expect(0);
    assert_eq!(ended.sorted(), ["[default0]:out 0", "out 1"]);
    assert_eq!(sorted(&ended.stderr), ["[default1]:err 1", "err 0"]);
    assert_eq!(ended.files_below("logs").len(), 2);
}

// SCN-A37
#[test]
fn the_prefix_is_a_template() {
    let template = "<${role_name}/${local_rank}/${rank}/${hostname}/${bogus}> ";
    let flags = (
        "-t 0:0,1:1 --role tr",
        &["--log-line-prefix-template", template],
    );
    let ended = job(flags, "echo text $RANK").expect(0);
    let host = rustix::system::uname();
    let host = host.nodename().to_str().unwrap().split('.').next().unwrap();
    let prefixed = format!("<tr/1/1/{host}/${{bogus}}> text 1");
    assert_eq!(ended.sorted(), [&*prefixed, "text 0"]);
}

// SCN-A38
#[test]
fn the_console_filter_and_the_filtered_copy_work_together() {
    let script = "echo out $RANK; echo nothing $RANK; echo bad $RANK; echo err $RANK >&2";
    let flags = "-t 3 --local-ranks-filter 1 --duplicate-stdout-filters out,bad";
    let ended = job(flags, script).expect(0);
    assert_eq!(
        ended.stdout,
        "[default1]:out 1\n[default1]:nothing 1\n[default1]:bad 1\n"
    );
    assert_eq!(ended.stderr, "[default1]:err 1\n");
    assert_eq!(
        ended.content("logs", "filtered_stdout.log"),
        "[default1]:out 1\n[default1]:bad 1\n"
    );
    assert_eq!(
        ended.content("logs", "0/stdout.log"),
        "out 0\nnothing 0\nbad 0\n"
    );
}

// SCN-A39
#[test]
fn lines_are_never_torn_on_the_console() {
    let ended = run_fixture(
        "--nproc-per-node 2 -t 1",
        &[
            "local=1?pause:10",
            "out-part:first half ",
            "pause:20",
            "out-part:second half\nlast",
        ],
    )
    .env("OMP_NUM_THREADS", "1")
    .expect(0);
    assert_eq!(
        ended.sorted(),
        [
            "[default0]:first half second half",
            "[default0]:last",
            "[default1]:first half second half",
            "[default1]:last"
        ]
    );
    assert!(ended.stdout.ends_with('\n'));
}

// SCN-A54
#[test]
fn no_log_directory_means_no_files_and_a_plain_console() {
    let script = "echo \"file:$TORCHELASTIC_ERROR_FILE\"; echo err >&2";
    let ended = run_shell("--log-dir /dev/null -t 3", script).expect(0);
    assert_eq!(ended.stdout, "file:\n");
    assert_eq!(ended.stderr, "err\n");
    assert_eq!(ended.files_below("."), Vec::<PathBuf>::new());
}

#[test]
fn a_temporary_log_directory_is_gone_at_the_end() {
    for (script, code) in [("true", 0), ("exit 7", 1)] {
        let ended = run_shell("", script).expect(code);
        // A directory without output is removed after a failure too.
        assert_eq!(fs::read_dir(ended.path("")).unwrap().count(), 0);
    }
}

// EDGE-S11
#[test]
fn a_relative_log_directory_holds_wherever_a_worker_goes() {
    let script = "cd /; echo '{\"message\":\"lost?\"}' > \"$TORCHELASTIC_ERROR_FILE\"; exit 1";
    let ended = job("", script).expect(1);
    ended.assert_stderr("traceback : lost?");
    let recorded = ended.content("logs", "attempt_0/0/error.json");
    assert!(recorded.contains("lost?"), "{recorded}");
}

// EDGE-S22
#[test]
fn what_the_console_filter_hides_is_shown_if_its_worker_fails() {
    let script = "if test $RANK = 1; then seq 100000 >&2; echo reason >&2; exit 3
        else echo fine; sleep 1000; fi";
    let ended = job("--local-ranks-filter 0", script).expect(1);
    let shown = ended.stderr.find("[default1]:reason\n");
    let report = ended.stderr.find("Root Cause");
    assert!(shown.is_some() && shown < report, "{}", ended.stderr);
    let lines = ended.stderr.matches("[default1]:").count();
    assert!((5000..12_000).contains(&lines), "{lines} lines");
    let kept = ended.content("logs", "1/kept_stderr.log");
    assert!(kept.ends_with("\nreason\n"));
}

#[test]
fn hidden_workers_that_succeed_leave_nothing() {
    let flags = "--nproc-per-node 2 --local-ranks-filter 0";
    let job = run_shell(flags, BOTH).env("OMP_NUM_THREADS", "1");
    let ended = job.expect(0);
    assert_eq!((&*ended.stdout, &*ended.stderr), ("out 0\n", "err 0\n"));
    assert_eq!(ended.files_below("."), Vec::<PathBuf>::new());
}

#[test]
fn equal_lines_of_several_workers_can_be_shown_as_one() {
    let prefix = ["--log-line-prefix-template", "<${role_name} ${rank}> "];
    let flags = ["--collapse", prefix[0], prefix[1], "-t", "1"];
    // Each worker waits until both have started.
    let script = "exec 3<> go; echo >> ready
        if test $(wc -l < ready) = 2; then printf '\\n\\n' >&3; fi; read go <&3
        echo same; echo other $RANK; echo same again";
    let ended = shell("mkfifo go; exec \"$RDZV\" run \"$@\"")
        .args(["sh", "--nproc-per-node", "2"])
        .args(flags)
        .args(["--no-python", "sh", "-c", script])
        .expect(0);
    // On a very busy machine, an equal line may arrive too late to be collapsed.
    ended.assert_stdout("<default 0-1> same");
    for rank in 0..2 {
        let other = format!("<default {rank}> other {rank}\n");
        ended.assert_stdout(&other);
    }
}
