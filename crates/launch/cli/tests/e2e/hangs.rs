//! Tests of hangs: expired timers, missed heartbeats, missing progress.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Ended, ends_within, rdzv, run_fixture, run_shell};

/// Asserts that a text is in the log `times` times.
#[track_caller]
fn assert_said(ended: &Ended, text: &str, times: usize) {
    assert_eq!(
        ended.stderr.matches(text).count(),
        times,
        "{}",
        ended.stderr
    );
}

/// Shell function that sends a line of the watchdog's protocol.
///
/// Its arguments are scope, seconds from now, signal and process. `date +%s` rounds down, so the
/// timer may expire up to a second early.
const TIMER: &str = "timer() { printf '{\"version\": 1, \"pid\": %s, \"scope_id\": \"%s\", \
                     \"expiration_time\": %s, \"signal\": %s}\\n' \"$4\" \"$1\" \
                     \"$(($(date +%s) + $2))\" \"$3\" > \"$TORCHELASTIC_TIMER_FILE\"; }\n";

/// Returns a launch with the watchdog on, whose worker can use `timer`.
///
/// In arguments, `$$` means `$`.
fn with_watchdog(flags: &[&str], script: &str) -> crate::harness::Job {
    run_shell(flags, &format!("{TIMER}{script}")).env("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
}

// SCN-A51
#[test]
fn a_timer_that_is_released_kills_nobody() {
    let ended = with_watchdog(
        &[],
        "timer a 1 9 $$$$; printf '{\"pid\": %s, \"scope_id\": \"a\", \"expiration_time\": -1, \
         \"signal\": 0}\\n' $$$$ > $TORCHELASTIC_TIMER_FILE; sleep 2.2; echo alive",
    )
    .expect(0);
    assert_eq!(ended.stdout, "alive\n");
    assert_eq!(std::fs::read_dir(ended.path("")).unwrap().count(), 0);
}

// SCN-A52, EDGE-S13
#[test]
fn an_expired_timer_is_a_failure_of_its_worker_and_the_agent_goes_on() {
    let ended = with_watchdog(
        &["--nproc-per-node", "2", "--max-restarts", "1"],
        "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && { echo again; exit 0; }\n\
         [ $RANK = 1 ] && timer 'step one' 1 9 $$$$\nsleep 1000",
    )
    .expect(0);
    assert_eq!(ended.stdout, "again\nagain\n");
    assert_said(&ended, "rank 1 (local rank 1, pid", 1);
    let cause = "its timer 'step one' expired";
    ended.assert_stderr(cause);
}

#[test]
fn an_expired_timer_whose_signal_is_not_deadly_ends_its_worker_all_the_same() {
    let ended = with_watchdog(
        &["--shutdown-timeout", "1"],
        "trap '' USR1 TERM; timer mild 0 10 $$$$; while :; do sleep 1; done",
    )
    .expect(1);
    ended.assert_stderr("(SIGKILL)");
}

#[test]
fn what_is_no_timer_of_ours_is_ignored() {
    let ended = with_watchdog(
        &[],
        "timer foreign 0 9 1; timer quiet 0 0 $$$$; echo '{' > $TORCHELASTIC_TIMER_FILE\n\
         head -c 20000 /dev/zero | tr '\\0' x > $TORCHELASTIC_TIMER_FILE\n\
         echo > $TORCHELASTIC_TIMER_FILE; sleep 1.2; echo alive",
    )
    .expect(0);
    assert_eq!(ended.stdout, "alive\n");
    let foreign = "timer \"foreign\" of process 1 has expired, but no running worker owns it";
    assert_said(&ended, foreign, 1);
    assert_said(&ended, "not a timer request", 1);
    assert_said(&ended, "longer than 4096 bytes", 1);
}

#[test]
fn a_flood_of_nonsense_is_complained_about_only_so_often() {
    let ended = with_watchdog(
        &[],
        "yes nonsense | head -n 5000 > $TORCHELASTIC_TIMER_FILE; sleep 0.3",
    )
    .expect(0);
    assert_said(&ended, "not a timer request", 20);
    assert_said(&ended, "further lines are not reported", 1);
}

#[test]
fn something_that_is_no_pipe_is_not_removed_for_the_watchdog() {
    let job = run_shell("", "echo started")
        .file("precious", "text")
        .env("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        .env("TORCHELASTIC_TIMER_FILE", "precious");
    let ended = job.expect(1);
    ended.assert_stderr("is not a named pipe");
    assert!(!ended.stdout.contains("started"));
    assert_eq!(ended.text("precious"), "text");
}

#[test]
fn a_pipe_that_was_left_there_is_used_again() {
    let ended = with_watchdog(&[], "timer a 1000 9 $$$$; echo fine")
        .pipe("timers")
        .env("TORCHELASTIC_TIMER_FILE", "timers")
        .expect(0);
    assert_eq!(ended.stdout, "fine\n");
    assert!(!ended.path("timers").exists());
}

#[test]
fn one_line_of_shell_is_a_heartbeat_and_one_that_does_not_come_is_a_failure() {
    let ended = run_shell(
        "--nproc-per-node=2 --heartbeat-timeout=step=4,checkpoint=1000 --hang-action=restart --max-restarts=1",
        "for i in 1 2 3 4; do echo step $i > $RDZV_HEARTBEAT; sleep 0.5; done\n\
         [ $TORCHELASTIC_RESTART_COUNT = 1 ] && { echo again; exit 0; }\n\
         [ $RANK = 0 ] && echo checkpoint > $RDZV_HEARTBEAT; sleep 1000",
    )
    .expect(0);
    assert_eq!(ended.stdout, "again\nagain\n");
    let cause = "rank 1 (local rank 1, pid";
    assert_said(&ended, cause, 1);
    ended.assert_stderr("in phase 'step 4' (limit 4.0 s)");
    // The report contains the location of the worker in the kernel.
    ended.assert_stderr("system call wait4");
    assert_eq!(std::fs::read_dir(ended.path("")).unwrap().count(), 0);
}

#[test]
fn without_a_limit_for_init_a_worker_need_not_send_anything() {
    let ended = run_shell(
        "--heartbeat-timeout=0.5 --hang-action=fail",
        "sleep 1.5; echo done > $RDZV_HEARTBEAT; sleep 1; echo fine",
    )
    .expect(0);
    assert_eq!(ended.stdout, "fine\n");
    let ended = run_shell(
        "--heartbeat-timeout=init=0.5 --hang-action=fail",
        "sleep 1000",
    )
    .expect(1);
    ended.assert_stderr("in phase 'init'");
}

#[test]
fn a_heartbeat_that_comes_late_is_reported_and_the_worker_goes_on() {
    let ended = run_shell(
        "--heartbeat-timeout=3",
        "echo > $RDZV_HEARTBEAT; sleep 6; echo > $RDZV_HEARTBEAT; sleep 1; echo fine",
    )
    .expect(0);
    assert_eq!(ended.stdout, "fine\n");
    assert_said(&ended, "no heartbeat for", 1);
    assert_said(&ended, "sends heartbeats again", 1);
}

#[test]
fn time_in_which_the_job_was_stopped_does_not_count() {
    let running = run_shell(
        "--heartbeat-timeout=5 --hang-timeout=5 --hang-action=fail",
        "for i in 1 2 3 4 5 6; do echo $i > $RDZV_HEARTBEAT; echo $i; sleep 0.3; done; echo fine",
    )
    .start();
    running.stdout.await_text("2\n", 1);
    running.signal(Signal::TSTP);
    assert!(!ends_within(running.pid(), Duration::from_secs(8)));
    running.signal(Signal::CONT);
    let ended = running.wait().expect(0);
    assert!(ended.stdout.ends_with("fine\n"), "{}", ended.stdout);
    assert_said(&ended, "hangs", 0);
}

#[test]
fn nothing_is_there_for_who_asked_for_nothing() {
    let ended = run_shell(
        "",
        "echo ${RDZV_HEARTBEAT-none} ${TORCHELASTIC_TIMER_FILE-none}",
    )
    .expect(0);
    assert_eq!(ended.stdout, "none none\n");
}

#[test]
fn workers_that_do_nothing_are_reported_within_the_limit_with_where_they_are() {
    let ended = run_fixture(
        "--nproc-per-node=3 --hang-timeout=2 --hang-action=fail --max-restarts=5",
        "rank=2?await:/dev/stdin pause:100000",
    )
    .expect(1);
    assert!(ended.took < Duration::from_secs(2 + 10), "{:?}", ended.took);
    for rank in 0..3 {
        let listed = format!("  rank {rank} (pid ");
        assert_said(&ended, &listed, 1);
    }
    ended.assert_stderr("system call clock_nanosleep");
    ended.assert_stderr("no progress for 2.");
    ended.assert_stderr("no restart: --hang-action fail");
    assert_said(&ended, "hangs: no progress", 3);
}

#[test]
fn a_hang_that_ends_by_itself_is_reported_once_and_then_its_end() {
    let ended = run_fixture("--hang-timeout=1", "pause:2500 compute:1000 out:fine").expect(0);
    assert_eq!(ended.stdout, "fine\n");
    assert_said(&ended, "hangs: no progress", 1);
    assert_said(&ended, "make progress again", 1);
}

#[test]
fn a_silent_worker_that_computes_speaks_for_those_who_wait() {
    let ended = run_fixture(
        "--nproc-per-node=2 --hang-timeout=3 --hang-action=fail",
        "rank=0?compute:9000 rank=0?signal:10 pause:60000",
    )
    .run();
    // Rank 0 signals itself, so no hang ends the run.
    assert_said(&ended, "hangs", 0);
    ended.assert_stderr("(SIGUSR1)");
}

#[test]
fn a_child_that_computes_is_progress() {
    let ended = run_fixture(
        "--hang-timeout=3 --hang-action=fail",
        "child:compute:9000 pause:9000 out:fine",
    )
    .expect(0);
    assert_eq!(ended.stdout, "fine\n");
    assert_said(&ended, "hangs", 0);
}

#[test]
fn output_is_progress() {
    let ended = run_shell(
        "--hang-timeout=3 --hang-action=fail",
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i; sleep 0.4; done",
    )
    .expect(0);
    assert_said(&ended, "hangs", 0);
}

#[test]
fn a_silent_worker_that_computes_for_four_times_the_limit_is_not_reported() {
    let running = rdzv([
        "run",
        "--hang-timeout=5",
        "--hang-action=fail",
        "--no-python",
    ])
    .args([crate::harness::fixture_worker()])
    .args(["compute:20000", "out:fine"])
    .start();
    assert!(ends_within(running.pid(), Duration::from_secs(200)));
    let ended = running.wait().expect(0);
    assert_eq!(ended.stdout, "fine\n");
    assert_said(&ended, "hangs", 0);
}
