//! Tests of workers that cannot start or that the kernel holds.
//!
//! The tests also check the initial state of a worker.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::harness::{rdzv, run_fixture, run_shell, run_shell_after};

#[test]
fn workers_get_three_descriptors_and_a_session_of_their_own() {
    let script = "ls /proc/$$$$/fd; cut -d' ' -f 1,5,6 /proc/$$$$/stat; echo $RDZV_KEEPER; pwd";
    let first = "exec 5< /dev/null 7> seven";
    let ended = run_shell_after(first, "", script).expect(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[..3], ["0", "1", "2"]);
    let ids: Vec<&str> = lines[3].split(' ').collect();
    assert!(
        ids[0] == ids[1] && ids[1] == ids[2],
        "pid, group, session: {ids:?}"
    );
    assert_eq!(lines[4], "", "workers do not know of the keeper");
    assert_eq!(lines[5], ended.directory.path().to_str().unwrap());
}

#[test]
fn a_child_that_ignores_the_signal_its_worker_obeys_goes_too() {
    let steps = [
        "rank=0?child:ignore:15;write:go:x;hang",
        "rank=1?await:go",
        "rank=1?exit:3",
        "hang",
    ];
    run_fixture("--nproc-per-node 2", &steps)
        .pipe("go")
        .expect(1);
}

#[test]
fn a_worker_that_cannot_be_started_leaves_none_of_those_before_it() {
    // The agent can open so few files that it cannot start all workers.
    let script = "trap '' TERM; setsid sleep 1000 & while :; do sleep 1000 & wait $!; done";
    let flags = "--nproc-per-node 60 --shutdown-timeout 1 --max-restarts 3";
    let ended = run_shell_after("ulimit -n 60", flags, script).expect(1);
    ended.assert_last_error("", &["local rank ", "Too many open files"]);
    let error = ended.last_error_line();
    let (_, worker) = error.split_once("local rank ").unwrap();
    let started: u32 = worker.split(',').next().unwrap().parse().unwrap();
    assert!((1..60).contains(&started), "{error}");
}

/// A worker has started when its program executes, not when its process exists.
#[test]
fn what_cannot_be_executed_is_named_with_the_reason() {
    for (content, mode, reason) in [
        ("exit 0", 0o644, "Permission denied (os error 13)"),
        (
            "#!/no/such/interpreter\n",
            0o755,
            "not the interpreter that it names",
        ),
    ] {
        let line = "run --nproc-per-node 2 --max-restarts 1 --no-python ./program";
        let job = rdzv(line.split(' ')).file("program", content);
        fs::set_permissions(job.path("program"), PermissionsExt::from_mode(mode)).unwrap();
        let ended = job.expect(1);
        ended.assert_last_error("", &["./program", reason]);
        assert!(!ended.stderr.contains("restart"), "{}", ended.stderr);
    }
}

/// Python code of a worker that the kernel holds in state D.
///
/// A child that shares its memory opens a pipe without a writer, before it executes its program.
/// Only SIGKILL ends this state.
const HELD: &str = "import os
os.mkfifo('held')
opening = (os.POSIX_SPAWN_OPEN, 0, 'held', os.O_RDONLY, 0)
os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opening])";

// SCN-A55
#[test]
fn a_worker_that_the_kernel_holds_ends_the_run_as_failed_whatever_restarts_are_left() {
    let script = format!(
        "echo started; test $RANK = 1 && exec python3 -c \"{HELD}\"
         trap 'exit 0' TERM; sleep 1000 & wait"
    );
    let flags = "--nproc-per-node 2 --max-restarts 3 --shutdown-timeout 1";
    let ended = run_shell(flags, &script)
        .env("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0.4")
        .expect(1);
    let said = &ended.stderr;
    // The workers started once, so there was no restart.
    assert_eq!(ended.stdout.matches("started\n").count(), 2, "{said}");
    for text in [
        "rank      : 1 (local_rank: 1)",
        "exitcode  : -9 ",
        "<NO_OTHER_FAILURES>",
    ] {
        ended.assert_stderr(text);
    }
    let held = "is in an uninterruptible wait in the kernel (state D";
    assert_eq!(said.matches(held).count(), 1, "{said}");
    let unhealthy = said.lines().filter(|line| line.contains("UNHEALTHY"));
    let unhealthy: Vec<&str> = unhealthy.collect();
    assert_eq!(unhealthy.len(), 1, "{said}");
    for text in ["local rank 1", "blocked in the kernel"] {
        assert!(unhealthy[0].contains(text), "{said}");
    }
}

#[test]
fn without_a_limit_nobody_minds_a_worker_that_the_kernel_holds() {
    let script = format!(
        "python3 -c \"{HELD}\" & pid=$!
         until test -p held && read x x state x < /proc/$pid/stat && test $state = D; do :; done
         exec 9> held; wait $pid"
    );
    let off = ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "0");
    run_shell("", &script).env(off.0, off.1).expect(0);
}
