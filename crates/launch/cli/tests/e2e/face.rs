//! Tests of the output style of `rdzv run`.
//!
//! The output has whole sentences, no internal log lines and no failure block. The cause is last.

use rdzv_testing::Words;
use rustix::process::Signal;

use crate::harness::{Ended, Job, rdzv, run_shell, torchrun};

/// Texts of torchrun that `rdzv run` does not print.
const OF_TORCHRUN: [&str; 6] = [
    "torch.distributed",
    "====",
    "Traceback",
    "closing signal",
    "exitcode",
    "Error: ",
];

fn own(flags: impl Words, script: &str) -> Job {
    run_shell(flags, script).own_face()
}

#[track_caller]
fn has_nothing_of_torchrun(ended: &Ended) {
    for text in OF_TORCHRUN {
        assert!(!ended.stderr.contains(text), "{text}: {}", ended.stderr);
    }
    let is_log_line = |line: &str| {
        let mut letters = line.chars();
        letters.next().is_some_and(|first| "EWI".contains(first))
            && letters.take(4).all(|digit| digit.is_ascii_digit())
            && line.len() > 5
    };
    assert!(!ended.stderr.lines().any(is_log_line), "{}", ended.stderr);
}

#[test]
fn a_wrong_line_is_one_sentence_with_the_flag_the_value_and_what_is_allowed() {
    for (line, sentence) in [
        (
            "--nnodes a",
            "--nnodes is 'a', but must be N or MIN:MAX, with positive numbers and MIN at most MAX, \
             such as 2 or 1:4",
        ),
        (
            "--nproc-per-node cpus",
            "--nproc-per-node is 'cpus', but must be a positive number, cpu, gpu, xpu or auto (did \
             you mean 'cpu'?)",
        ),
        (
            "--max-restarts x",
            "--max-restarts is 'x', but must be a whole number",
        ),
        (
            "--max-restarts=-1",
            "--max-restarts is -1, but must be 0 or more",
        ),
        (
            "--rdzv-backend c10",
            "--rdzv-backend is 'c10', but must be one of static, c10d, etcd, etcd-v2 (did you mean \
             'c10d'?)",
        ),
        (
            "--start-method spwn",
            "--start-method is 'spwn', but must be one of spawn, fork, forkserver (did you mean \
             'spawn'?)",
        ),
        (
            "--nproc 2",
            "--nproc could mean --nproc-per-node; write the whole name",
        ),
        (
            "--standalone=1",
            "--standalone takes no value, but '1' was specified",
        ),
        (
            "--shutdown-timeout=-1",
            "--shutdown-timeout is -1, but must be a non-negative number of seconds",
        ),
        (
            "--signals-to-handle SIGKIL",
            "--signals-to-handle: signal 'SIGKIL' does not exist (did you mean 'SIGKILL'?); use \
             the names from `kill -l` with the prefix SIG",
        ),
        (
            "--rdzv-conf foo",
            "--rdzv-conf: The rendezvous configuration option 'foo' must have a value specified.",
        ),
        (
            "--report=none/report.json",
            "--report: cannot write $DIR/none/report.json: No such file or directory (os error 2)",
        ),
    ] {
        let job = rdzv(["run"]).args(line.words()).args(["s.py"]);
        let ended = job.own_face().expect(2);
        let directory = ended.directory.path().display().to_string();
        let said = ended.stderr.replace(&directory, "$DIR");
        assert_eq!(said, format!("rdzv run: {sentence}\n"));
        has_nothing_of_torchrun(&ended);
    }
    let ended = rdzv(["run"]).own_face().expect(2);
    ended.assert_last_error("rdzv run: no script was specified", &[]);
}

#[test]
fn a_wrong_variable_is_named() {
    let job = rdzv(["run", "s.py"]).own_face().env("PET_NNODES", "a");
    let ended = job.expect(2);
    ended.assert_stderr(" (the value comes from the variable PET_NNODES)\n");
    let job = rdzv(["run", "s.py"]).own_face().env("LOGLEVEL", "info");
    let said =
        "rdzv run: LOGLEVEL is 'info', but must be CRITICAL, ERROR, WARNING, INFO or DEBUG\n";
    assert_eq!(job.expect(2).stderr, said);
}

#[test]
fn both_switches_give_torchruns_face() {
    for job in [
        rdzv(["run", "--compat-output", "--nnodes=a", "s.py"]).own_face(),
        rdzv(["run", "--nnodes=a", "s.py"]),
        torchrun(["--nnodes=a", "s.py"]).own_face(),
    ] {
        let ended = job.expect(1);
        assert_eq!(
            ended.last_error_line(),
            "ValueError: invalid literal for int() with base 10: 'a'"
        );
    }
    // The flag belongs to the script here, not to rdzv.
    let job = own("", "exit 3").args(["--compat-output"]);
    has_nothing_of_torchrun(&job.expect(1));
}

#[test]
fn a_restart_a_failure_and_the_attempts_are_sentences() {
    let flags = "--nproc-per-node=2 --max-restarts=1 -r3 --log-dir=logs";
    let script =
        "test $RANK = 0 && sleep 1000; echo \"boom: $TORCHELASTIC_RESTART_COUNT\" >&2; exit 3";
    let ended = own(flags, script).expect(1);
    has_nothing_of_torchrun(&ended);
    let lines: Vec<&str> = ended.stderr.lines().collect();
    let has = |start: &str, end: &str| {
        let found = lines
            .iter()
            .find(|line| line.starts_with(start) && line.ends_with(end));
        assert!(found.is_some(), "{start} ... {end}\n{}", ended.stderr);
    };
    has(
        "rdzv: restart 1 of 1: rank 1 on ",
        " failed (exited with code 3; its last line: boom: 0); all workers restart",
    );
    has(
        "rdzv: first failure: rank 1 (local rank 1, pid ",
        ": exited with code 3; its last line: boom: 1",
    );
    has("rdzv: earlier attempts: 1: rank 1 on ", "boom: 0");
    has("rdzv: logs: ", "/attempt_1/1");
    for line in [
        "rdzv: OMP_NUM_THREADS is not set: each worker uses 1 thread",
        "rdzv: 1 more: rank 0: exit code -15 (SIGTERM), stopped by the agent",
        "rdzv: no restart: exceeded max_restarts=1",
    ] {
        ended.assert_stderr(line);
    }
    ended.assert_last_error("rdzv: help: ", &[]);
}

#[test]
fn a_success_is_one_line() {
    let ended = own("--nproc-per-node=2 --max-restarts=1", "exit 0").expect(0);
    ended.assert_last_error("rdzv: finished in ", &[" s, 2 workers on 1 node"]);
    let script = "exit $((1 - TORCHELASTIC_RESTART_COUNT))";
    let ended = own("--max-restarts=1", script).expect(0);
    let end = ", 1 worker on 1 node, 1 restart (rank 0: exited with code 1)";
    ended.assert_last_error("rdzv: finished in ", &[end]);
}

#[test]
fn a_signal_says_who_is_awaited_and_what_the_next_one_does() {
    let script = "trap '' TERM INT; echo up; while :; do sleep 1; done";
    let running = own("--nproc-per-node=2 --shutdown-timeout=40", script).start();
    running.stdout.await_text("up\n", 2);
    running.signal(Signal::TERM);
    running.stderr.await_text(
        "rdzv: SIGTERM: ranks 0-1 have 40 s to exit; a second SIGTERM leaves 10 s, a third kills them\n",
        1,
    );
    running.signal(Signal::INT);
    running.stderr.await_text(
        "rdzv: Ctrl-C: ranks 0-1 have 10 s left to exit; one more Ctrl-C kills them\n",
        1,
    );
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    ended.assert_stderr("rdzv: SIGTERM: ranks 0-1 are killed\nrdzv: stopped by SIGTERM after ");
    ended.assert_last_error("", &["; 2 workers exited, 2 of them killed by SIGKILL"]);
    has_nothing_of_torchrun(&ended);
}

#[test]
fn a_program_that_is_not_there_is_said_without_an_errno() {
    let ended = rdzv(["run", "--no-python", "no-such-program"])
        .own_face()
        .expect(1);
    ended.assert_stderr(": could not be started: No such file or directory: 'no-such-program'\n");
}

#[test]
fn log_lines_with_times_are_there_for_who_asks() {
    let ended = own("", "exit 1").env("LOGLEVEL", "INFO").expect(1);
    ended.assert_stderr(" failed (exitcode: 1) local_rank: 0 ");
}
