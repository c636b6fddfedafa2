//! Workers that exit, crash, hang, ignore signals, fork and fail, and what is left of them.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use crate::harness::{start, start_after, start_program};
use rustix::process::Signal;

#[test]
fn a_good_run_says_so() {
    let ended = start(&["workers=2"], "echo rank $RANK of $WORLD_SIZE").end();
    assert_eq!(ended.code(), Some(0));
    let mut lines: Vec<_> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["rank 0 of 2", "rank 1 of 2"]);
    assert_eq!(
        ended.all("event final "),
        ["local_rank=0 SUCCEEDED", "local_rank=1 SUCCEEDED"]
    );
    assert!(
        std::fs::read_dir(ended.directory.path())
            .unwrap()
            .next()
            .is_none()
    );
}

#[test]
fn the_failed_worker_is_named_and_the_others_are_stopped() {
    let script = "test $RANK = 1 && exit 7; exec sleep 1000";
    let ended = start(&["workers=2"], script).end();
    assert_eq!(ended.code(), Some(1));
    assert_eq!(
        ended.all("failure "),
        [
            "local_rank=1 exit=7 stopped=false file=none",
            "local_rank=0 exit=-15 stopped=true file=none"
        ]
    );
    ended.assert_said("outcome failed root=1");
    assert_eq!(
        ended.all("event final "),
        ["local_rank=0 FAILED", "local_rank=1 FAILED"]
    );
    let left = std::fs::read_dir(ended.directory.path()).unwrap().count();
    assert_eq!(
        left, 0,
        "a temporary log directory without output is of no use"
    );
}

#[test]
fn a_crash_is_distinguished_from_an_exit() {
    let ended = start(&[], "kill -SEGV $$").end();
    ended.assert_said("failure local_rank=0 exit=-11");
}

#[test]
fn a_worker_that_ends_well_when_it_is_stopped_did_not_fail() {
    let script = "if test $RANK = 1; then read go < $DIR/go; exit 3; fi
        trap 'exit 0' TERM; echo ready > $DIR/go; sleep 1000 & wait";
    let ended = start_after("mkfifo $DIR/go", &["workers=2"], script).end();
    assert_eq!(ended.all("failure ").len(), 1, "{:#?}", ended.said);
    assert_eq!(
        ended.all("event final "),
        ["local_rank=0 TERMINATED", "local_rank=1 FAILED"]
    );
}

/// Rank 3 holds a pipe open that the others read; they fail 20 ms after it has closed.
#[test]
fn the_first_of_many_failures_is_the_root_cause() {
    let script = "if test $RANK = 3; then exec 9> $DIR/held; exit 4; fi
        read nothing < $DIR/held; sleep 0.02; exit 5";
    for _ in 0..20 {
        let ended = start_after("mkfifo $DIR/held", &["workers=4"], script).end();
        ended.assert_said("failure local_rank=3 exit=4");
        ended.assert_said("outcome failed root=3");
    }
}

#[test]
fn a_failed_group_is_restarted_as_often_as_allowed() {
    let ended = start(
        &["restarts=2"],
        "echo $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS; exit 1",
    )
    .end();
    assert_eq!(ended.stdout, "0 of 2\n1 of 2\n2 of 2\n");
    assert_eq!(
        ended.all("event restarting "),
        ["remaining=1", "remaining=0"]
    );
    let order: Vec<&str> = ended
        .all("event ")
        .into_iter()
        .map(|event| event.split(' ').next().unwrap())
        .collect();
    assert_eq!(
        order[..5],
        ["rendezvous", "assigned", "started", "exited", "restarting"]
    );
    assert_eq!(order[order.len() - 2..], ["final", "agent"]);
}

#[test]
fn nothing_of_an_attempt_is_left_when_the_next_one_begins() {
    let script = "case $TORCHELASTIC_RESTART_COUNT in
        0) sleep 1000 & echo $! >> $DIR/pids
           setsid sleep 1000 & echo $! >> $DIR/pids
           (setsid sh -c 'echo $$ >> $DIR/pids; echo x > $DIR/up; exec sleep 1000' &)
           read up < $DIR/up; exit 3;;
        *) for pid in $(cat $DIR/pids); do kill -0 $pid 2>&- && exit 9; done; exit 0;;
        esac";
    let ended = start_after("mkfifo $DIR/up", &["restarts=1"], script).end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
    ended.assert_nothing_left(3);
}

#[test]
fn what_a_successful_worker_leaves_goes_with_it() {
    let ended = start(&[], "sleep 1000 & echo $! >> $DIR/pids; exit 0").end();
    assert_eq!(ended.code(), Some(0));
    ended.assert_nothing_left(1);
}

#[test]
fn a_child_that_ignores_the_signal_its_worker_obeys_goes_too() {
    let script = "if test $RANK = 1; then read go < $DIR/go; exit 3; fi
        sh -c \"trap '' TERM; echo \\$\\$ >> $DIR/pids; echo > $DIR/go; exec sleep 1000\" & wait";
    let ended = start_after("mkfifo $DIR/go", &["workers=2"], script).end();
    ended.assert_said("outcome failed root=1");
    ended.assert_nothing_left(1);
}

#[test]
fn a_signal_is_passed_on_and_ends_the_run_in_order() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT] {
        let number = signal.as_raw();
        let script =
            format!("trap 'echo got {number}; exit 0' {number}; echo ready >&2; sleep 1000 & wait");
        let mut harness = start(&["workers=2"], &script);
        harness.wait_for("ready");
        harness.wait_for("ready");
        harness.signal(harness.keeper(), signal);
        let ended = harness.end();
        assert_eq!(ended.code(), Some(1));
        assert_eq!(ended.stdout, format!("got {number}\n").repeat(2));
        assert_eq!(
            ended.all("event received "),
            [format!("signal={number}")],
            "forwarded once"
        );
        ended.assert_said(&format!(
            "outcome signalled signal={number} workers_started=true"
        ));
        ended.assert_said(&format!(
            "log WARN Received {number} death signal, shutting down workers"
        ));
    }
}

#[test]
fn workers_that_ignore_the_signal_are_killed_after_the_grace() {
    let script = "trap '' TERM; echo $$ >> $DIR/pids; echo ready >&2; while :; do sleep 1000; done";
    let mut harness = start(&["workers=2", "grace=300"], script);
    harness.wait_for("ready");
    harness.wait_for("ready");
    let began = Instant::now();
    harness.signal(harness.keeper(), Signal::TERM);
    let ended = harness.end();
    assert!(began.elapsed() >= Duration::from_millis(300));
    assert_eq!(ended.all("event signalled ").len(), 4);
    ended.assert_said("log WARN Unable to shutdown process");
    ended.assert_nothing_left(2);
}

#[test]
fn one_grace_holds_on_every_path() {
    let script = "if test $RANK = 1; then read go < $DIR/go; exit 3; fi
        trap '' TERM; echo > $DIR/go; while :; do sleep 1000; done";
    let ended = start_after("mkfifo $DIR/go", &["workers=2", "grace=200"], script).end();
    ended.assert_said("outcome failed root=1");
    ended.assert_said("failure local_rank=0 exit=-9 stopped=true");
}

#[test]
fn three_signals_leave_no_worker_behind() {
    let script = "trap '' TERM INT HUP; echo $$ >> $DIR/pids; echo ready >&2
        while :; do sleep 1000; done";
    let mut harness = start(&["workers=2", "grace=60000"], script);
    harness.wait_for("ready");
    harness.wait_for("ready");
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        harness.signal(harness.keeper(), signal);
        harness.wait_for(&format!("event received signal={}", signal.as_raw()));
    }
    let ended = harness.end();
    ended.assert_said("outcome signalled signal=15");
    ended.assert_nothing_left(2);
}

#[test]
fn a_missing_program_is_named() {
    let ended = start_program(&["workers=2"], &["no-such-program-here"]).end();
    assert_eq!(ended.code(), Some(1));
    ended.assert_said("outcome error [Errno 2] No such file or directory: 'no-such-program-here'");
}

#[test]
fn a_worker_that_cannot_be_started_takes_those_before_it_along() {
    // Descriptors run out in the middle of the start.
    let script = "echo $$ >> $DIR/pids; exec sleep 1000";
    let ended = start_after("ulimit -n 30", &["workers=32"], script).end();
    ended.assert_said("outcome error ");
    let started = ended.all("event started ").len();
    assert!((1..32).contains(&started), "{started} were started");
    for pid in ended.pids() {
        assert_eq!(rdzv_testing::pids::state(pid), None);
    }
}

#[test]
fn workers_get_three_descriptors_and_a_session_of_their_own() {
    let script = "ls /proc/$$/fd; cut -d' ' -f 1,5,6 /proc/$$/stat; echo $RDZV_KEEPER; pwd";
    let ended = start_after("exec 5< /dev/null 7> $DIR/seven", &[], script).end();
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert_eq!(lines[..3], ["0", "1", "2"]);
    let ids: Vec<&str> = lines[3].split(' ').collect();
    assert!(
        ids[0] == ids[1] && ids[1] == ids[2],
        "pid, group, session: {ids:?}"
    );
    assert_eq!(lines[4], "", "workers do not know of the keeper");
    assert_eq!(lines[5], std::env::current_dir().unwrap().to_str().unwrap());
}

#[test]
fn a_broken_error_file_is_noted_and_costs_no_restart() {
    let script = "printf '{\"mess' > $TORCHELASTIC_ERROR_FILE; exit 4";
    let ended = start(&["restarts=1"], script).end();
    assert_eq!(ended.all("event restarting ").len(), 1);
    ended.assert_said("failure local_rank=0 exit=4 stopped=false file=unusable (is no JSON");
}

/// As soon as this worker has started, the kernel holds it in state D: a child that shares its memory
/// opens a pipe that nobody writes to, before it executes its program. Only SIGKILL ends that.
const HELD: &str = "import os
path = os.environ['DIR'] + '/held'
os.mkfifo(path)
opening = (os.POSIX_SPAWN_OPEN, 0, path, os.O_RDONLY, 0)
os.posix_spawn('/bin/true', ['true'], {}, file_actions=[opening])";

#[test]
fn a_worker_that_the_kernel_holds_ends_the_run_as_failed_whatever_restarts_are_left() {
    let script = format!(
        "test $RANK = 1 && exec python3 -c \"{HELD}\"
         trap 'exit 0' TERM; sleep 1000 & wait"
    );
    let limit = "export TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.4";
    let ended = start_after(limit, &["workers=2", "restarts=3", "grace=300"], &script).end();
    assert_eq!(ended.code(), Some(1), "{:#?}", ended.said);
    assert_eq!(
        ended.all("failure "),
        ["local_rank=1 exit=-9 stopped=false file=none"],
        "{:#?}",
        ended.said
    );
    ended.assert_said("outcome failed root=1");
    assert!(ended.all("event restarting").is_empty());
    let said = |words: &[&str]| {
        let found = |line: &&String| words.iter().all(|word| line.contains(word));
        assert_eq!(
            ended.said.iter().filter(found).count(),
            1,
            "{words:?} among {:#?}",
            ended.said
        );
    };
    said(&["log WARN", "local rank 1", "(state D"]);
    said(&[
        "log ERROR",
        "UNHEALTHY",
        "local rank 1",
        "held by the kernel",
    ]);
}

#[test]
fn without_a_limit_nobody_minds_a_worker_that_the_kernel_holds() {
    let script = format!(
        "python3 -c \"{HELD}\" & pid=$!
         until test -p $DIR/held && read x x state x < /proc/$pid/stat && test $state = D; do :; done
         exec 9> $DIR/held; wait $pid"
    );
    let off = "export TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0";
    let ended = start_after(off, &[], &script).end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
}

#[test]
fn a_worker_that_cannot_be_started_leaves_none_of_those_before_it() {
    // The agent can open so few files that it runs out of them among the workers.
    let script = "trap '' TERM; echo $$ >> $DIR/pids
        setsid sleep 1000 & echo $! >> $DIR/pids; while :; do sleep 1000 & wait $!; done";
    let options = ["workers=60", "grace=200", "restarts=3"];
    let ended = start_after("ulimit -n 40", &options, script).end();
    assert_eq!(ended.code(), Some(1));
    let started = ended.all("event started ").len();
    assert!((1..60).contains(&started), "{started} of 60 were started");
    ended.assert_said("outcome error ");
    let error = ended.all("outcome error ")[0];
    assert!(error.contains("Too many open files"), "{error}");
    assert!(error.contains(&format!("local rank {started}")), "{error}");
    ended.assert_nothing_left(ended.pids().len());
}

/// A worker counts as started when its program is being executed, not when there is a process.
#[test]
fn what_cannot_be_executed_is_named_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str, mode: u32| {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain", "exit 0", 0o644);
    let stray = file("stray", "#!/no/such/interpreter\n", 0o755);
    for (program, reason) in [
        (plain.as_str(), "Permission denied (os error 13)"),
        (stray.as_str(), "not the interpreter that it names"),
        ("/no/such/program", "No such file or directory"),
    ] {
        let ended = start_program(&["workers=2", "restarts=1"], &[program]).end();
        assert_eq!(ended.code(), Some(1));
        assert!(ended.all("event started").is_empty(), "{:#?}", ended.said);
        let error = ended.all("outcome error ")[0];
        assert!(error.contains(program) && error.contains(reason), "{error}");
    }
}
