//! Jobs and workers that are stopped and go on: Ctrl-Z, `fg`, SIGSTOP, SIGCONT.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

use crate::harness;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::harness::{Harness, start, start_after};
use rdzv_testing::pids::{ends_within, kill, state, wait_for_state};
use rustix::process::Signal;

/// A worker with a child, which end when somebody writes to the pipe `go`.
const WAITS: &str = "echo $$ >> $DIR/pids; (echo up >&2; read go < $DIR/go; echo went) & wait";

/// Stops the job as Ctrl-Z does and waits until keeper and workers stand still.
fn stop(harness: &Harness, workers: &[i32]) {
    harness.signal(harness.keeper(), Signal::TSTP);
    for process in workers.iter().chain([&harness.keeper()]) {
        wait_for_state(*process, 'T');
    }
}

/// Writes to the pipe `go` as soon as somebody reads.
fn write_to_pipe(harness: &Harness) -> JoinHandle<()> {
    let go = harness.directory.path().join("go");
    thread::spawn(move || std::fs::write(go, "go\n").unwrap())
}

#[test]
fn a_stopped_job_stands_still_and_goes_on() {
    let mut harness = start_after("mkfifo $DIR/go", &[], WAITS);
    harness.wait_for("up");
    let workers = harness::pids(harness.directory.path());
    assert_eq!(workers.len(), 1);
    let agent = harness.agent();
    for _ in 0..3 {
        stop(&harness, &workers);
        assert_ne!(state(agent), Some('T'), "it keeps the node in the round");
        harness.signal(harness.keeper(), Signal::CONT);
        for process in [workers[0], harness.keeper()] {
            wait_for_state(process, 'S');
        }
    }
    stop(&harness, &workers);
    let go = write_to_pipe(&harness);
    // The worker's child cannot read before it goes on.
    assert!(!ends_within(workers[0], Duration::from_millis(50)));
    harness.signal(harness.keeper(), Signal::CONT);
    go.join().unwrap();
    let ended = harness.end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
    assert_eq!(ended.stdout, "went\n");
}

#[test]
fn the_grace_does_not_run_while_the_job_stands_still() {
    let script = "trap 'echo told >&2' TERM; echo $$ >> $DIR/pids; echo up >&2
        while :; do sleep 1000 & wait $!; done";
    let mut harness = start(&["grace=1500"], script);
    harness.wait_for("up");
    let workers = harness::pids(harness.directory.path());
    let told = Instant::now();
    harness.signal(harness.keeper(), Signal::TERM);
    harness.wait_for("told");
    stop(&harness, &workers);
    let used = told.elapsed();
    assert!(!ends_within(workers[0], Duration::from_millis(1700)));
    let goes_on = Instant::now();
    harness.signal(harness.keeper(), Signal::CONT);
    let ended = harness.end();
    let left = goes_on.elapsed();
    ended.assert_said("event exited local_rank=0 exit=-9");
    let grace = Duration::from_millis(1500);
    assert!(
        left + used + Duration::from_millis(50) >= grace,
        "{left:?} after {used:?}"
    );
}

#[test]
fn a_signal_ends_a_job_that_stands_still() {
    let script = "trap 'echo told; exit 0' TERM; echo $$ >> $DIR/pids; echo up >&2
        while :; do sleep 1000 & wait $!; done";
    let mut harness = start(&[], script);
    harness.wait_for("up");
    let workers = harness::pids(harness.directory.path());
    stop(&harness, &workers);
    // What a shell does for `kill %1`: the keeper takes the signal when it goes on.
    harness.signal(harness.keeper(), Signal::TERM);
    harness.signal(harness.keeper(), Signal::CONT);
    let ended = harness.end();
    assert_eq!(ended.stdout, "told\n");
    ended.assert_said("outcome signalled signal=15");
    ended.assert_nothing_left(1);
}

#[test]
fn nothing_is_left_of_a_job_that_is_killed_while_it_stands_still() {
    let mut harness = start_after("mkfifo $DIR/go", &["grace=60000"], WAITS);
    harness.wait_for("up");
    let mut processes = harness::pids(harness.directory.path());
    stop(&harness, &processes);
    processes.push(harness.agent());
    harness.signal(harness.keeper(), Signal::KILL);
    for process in processes {
        assert!(ends_within(process, Duration::from_secs(10)));
    }
}

#[test]
fn without_a_keeper_the_agent_stops_itself() {
    let mut harness = start_after("mkfifo $DIR/go", &["alone"], WAITS);
    harness.wait_for("up");
    let workers = harness::pids(harness.directory.path());
    stop(&harness, &workers);
    let go = write_to_pipe(&harness);
    harness.signal(harness.keeper(), Signal::CONT);
    go.join().unwrap();
    let ended = harness.end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
}

#[test]
fn a_worker_that_is_stopped_has_not_ended() {
    let mut harness = start_after("mkfifo $DIR/go", &["restarts=1"], WAITS);
    harness.wait_for("up");
    let worker = harness::pids(harness.directory.path())[0];
    kill(worker, Signal::STOP);
    wait_for_state(worker, 'T');
    std::fs::write(harness.directory.path().join("go"), "go\n").unwrap();
    assert!(!ends_within(harness.agent(), Duration::from_millis(100)));
    kill(worker, Signal::CONT);
    let ended = harness.end();
    assert_eq!(ended.code(), Some(0), "{:#?}", ended.said);
    assert_eq!(ended.all("event exited "), ["local_rank=0 exit=0"]);
}

#[test]
fn a_stopped_worker_can_follow_the_signal_that_ends_it() {
    let script = "if test $RANK = 1; then read go < $DIR/go; exit 3; fi
        trap 'echo obeyed; exit 0' TERM
        (read x x state x < /proc/$$/stat; until test $state = T; do
            read x x state x < /proc/$$/stat; done; echo > $DIR/go) &
        kill -STOP $$; wait";
    let ended = start_after("mkfifo $DIR/go", &["workers=2", "grace=20000"], script).end();
    assert_eq!(ended.stdout, "obeyed\n", "{:#?}", ended.said);
    assert_eq!(ended.all("failure ").len(), 1);
}
