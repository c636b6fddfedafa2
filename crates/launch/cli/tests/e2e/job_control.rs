//! Tests of jobs and workers that are stopped and continued.
//!
//! They cover Ctrl-Z, `fg`, SIGSTOP and SIGCONT.

use std::fs;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rdzv_testing::pids::{state, wait_for_state};
use rustix::process::Signal;

use crate::harness::{Running, ends_within, kill, run_shell};

/// Script of a worker and its child, which exit after a write to the pipe `go`.
const WAITS: &str = "echo pid $$$$; (echo up; read go < go; echo went) & wait";

/// Script of a worker that runs until a signal; a test adds a trap for SIGTERM.
const NAMES_SIGTERM: &str = "echo pid $$$$; echo up; while :; do sleep 1000 & wait $!; done";

/// Starts a run of one worker, and returns the worker's process id too.
fn start(flags: &[&str], script: &str) -> (Running, i32) {
    let running = run_shell(flags, script).pipe("go").start();
    let worker = running.stdout.await_line("pid ").parse().unwrap();
    running.stdout.await_line("up");
    (running, worker)
}

/// Stops the job as Ctrl-Z does, and waits until keeper and worker are stopped.
fn stop(running: &Running, worker: i32) {
    running.signal(Signal::TSTP);
    wait_for_state(worker, 'T');
    wait_for_state(running.pid(), 'T');
}

/// Writes to the pipe `go` as soon as it has a reader.
fn write_to_pipe(running: &Running) -> JoinHandle<()> {
    let go = running.path("go");
    thread::spawn(move || fs::write(go, "go\n").unwrap())
}

#[test]
fn a_stopped_job_stands_still_and_goes_on() {
    let (running, worker) = start(&[], WAITS);
    for _ in 0..3 {
        stop(&running, worker);
        // The agent is not stopped: it keeps the node in the round.
        assert_ne!(state(running.agent_pid()), Some('T'));
        running.signal(Signal::CONT);
        wait_for_state(worker, 'S');
        wait_for_state(running.pid(), 'S');
    }
    stop(&running, worker);
    let go = write_to_pipe(&running);
    // The worker's child cannot read before it is continued.
    assert!(!ends_within(worker, Duration::from_millis(50)));
    running.signal(Signal::CONT);
    go.join().unwrap();
    assert!(running.wait().expect(0).stdout.ends_with("went\n"));
}

#[test]
fn the_shutdown_timeout_does_not_run_while_the_job_is_stopped() {
    let script = format!("trap 'echo told' TERM; {NAMES_SIGTERM}");
    let (running, worker) = start(&["--shutdown-timeout", "2"], &script);
    let told = Instant::now();
    running.signal(Signal::TERM);
    running.stdout.await_line("told");
    stop(&running, worker);
    let used = told.elapsed();
    assert!(!ends_within(worker, Duration::from_millis(2200)));
    let goes_on = Instant::now();
    running.signal(Signal::CONT);
    let ended = running.wait().expect(1);
    let left = goes_on.elapsed();
    ended.assert_stderr("forcefully exiting via 9");
    assert!(
        left + used + Duration::from_millis(50) >= Duration::from_secs(2),
        "{left:?} after {used:?}"
    );
}

#[test]
fn a_signal_ends_a_job_that_stands_still() {
    let script = format!("trap 'echo told; exit 0' TERM; {NAMES_SIGTERM}");
    let (running, worker) = start(&[], &script);
    stop(&running, worker);
    // A shell does the same for `kill %1`: the keeper receives SIGTERM when it continues.
    running.signal(Signal::TERM);
    running.signal(Signal::CONT);
    let ended = running.wait().expect(1);
    assert!(ended.stdout.ends_with("told\n"));
    ended.assert_stderr("got signal: 15");
}

#[test]
fn nothing_is_left_of_a_job_that_is_killed_while_it_stands_still() {
    let (running, worker) = start(&["--shutdown-timeout", "60"], WAITS);
    stop(&running, worker);
    running.signal(Signal::KILL);
    assert!(running.all_gone_within(Duration::from_secs(10)));
}

#[test]
fn a_worker_that_is_stopped_has_not_ended() {
    let (running, worker) = start(&["--max-restarts", "1"], WAITS);
    kill(worker, Signal::STOP);
    wait_for_state(worker, 'T');
    running.write("go", "go\n");
    let agent = running.agent_pid();
    assert!(!ends_within(agent, Duration::from_millis(100)));
    kill(worker, Signal::CONT);
    assert_eq!(running.wait().expect(0).stdout.matches("up\n").count(), 1);
}

#[test]
fn a_stopped_worker_can_follow_the_signal_that_ends_it() {
    let script = "if test $RANK = 1; then read go < go; exit 3; fi
        trap 'echo obeyed; exit 0' TERM
        (read x x state x < /proc/$$$$/stat; until test $state = T; do
            read x x state x < /proc/$$$$/stat; done; echo > go) &
        kill -STOP $$$$; wait";
    let flags = "--nproc-per-node 2 --shutdown-timeout 20";
    let ended = run_shell(flags, script).pipe("go").expect(1);
    assert_eq!(ended.stdout, "obeyed\n", "{}", ended.stderr);
    ended.assert_stderr("<NO_OTHER_FAILURES>");
}
