//! Whoever is killed: nothing of the run is left, and nothing else is touched.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

use crate::harness;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::harness::{Harness, pid, start, start_after};
use rdzv_testing::pids::{ends_within, kill, state, wait_for_state};
use rustix::io::ioctl_fionread;
use rustix::process::Signal;

/// A worker that ignores SIGTERM, with a child, one in a session of its own and one doubly forked.
/// Says `up` when all four are there.
const STUBBORN: &str = "trap '' TERM
    echo $$ >> $DIR/pids
    sleep 1000 & echo $! >> $DIR/pids
    setsid sleep 1000 & echo $! >> $DIR/pids
    (setsid sh -c 'echo $$ >> $DIR/pids; echo up >&2; exec sleep 1000' &)
    while :; do sleep 1000; done";

fn stubborn(options: &[&str]) -> (Harness, Vec<i32>) {
    let mut harness = start(options, STUBBORN);
    harness.wait_for("up");
    let pids = harness::pids(harness.directory.path());
    assert_eq!(pids.len(), 4);
    (harness, pids)
}

#[track_caller]
fn assert_gone(pids: &[i32], within: Duration) {
    for pid in pids {
        assert!(ends_within(*pid, within), "{pid:?} is still there");
    }
}

#[test]
fn when_the_keeper_is_killed_everything_goes_within_a_second() {
    let (harness, mut pids) = stubborn(&[]);
    pids.push(harness.agent());
    harness.signal(harness.keeper(), Signal::KILL);
    assert_gone(&pids, Duration::from_secs(10));
}

/// The processes of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ours {
    Keeper,
    Guard,
    Agent,
}

/// Kills some of them at once, after others were stopped; in the end nothing is left but a keeper
/// that is stopped.
#[track_caller]
fn kill_together(stopped: Option<Ours>, killed: &[Ours]) {
    let (harness, mut pids) = stubborn(&[]);
    let pid = |which| match which {
        Ours::Keeper => harness.keeper(),
        Ours::Guard => harness.guard(),
        Ours::Agent => harness.agent(),
    };
    // Found while all are there.
    let killed: Vec<i32> = killed.iter().map(|which| pid(*which)).collect();
    pids.extend([harness.guard(), harness.agent()]);
    if let Some(which) = stopped {
        harness.signal(pid(which), Signal::STOP);
        // The keeper has its guard go on.
        if which != Ours::Guard {
            wait_for_state(pid(which), 'T');
        }
    }
    for pid in killed {
        harness.signal(pid, Signal::KILL);
    }
    if stopped == Some(Ours::Keeper) {
        // The guard waits to be collected by the keeper, but what it guards is gone.
        pids.retain(|pid| *pid != harness.guard());
        assert_gone(&pids, Duration::from_secs(10));
        harness.signal(harness.keeper(), Signal::CONT);
    }
    assert_gone(&pids, Duration::from_secs(10));
    assert_eq!(harness.end().signal(), Some(9));
}

#[test]
fn when_any_two_are_killed_everything_goes() {
    use Ours::{Agent, Guard, Keeper};
    for killed in [
        [Keeper, Agent],
        [Agent, Keeper],
        [Keeper, Guard],
        [Guard, Keeper],
        [Guard, Agent],
        [Agent, Guard],
    ] {
        kill_together(None, &killed);
    }
}

#[test]
fn when_one_is_killed_while_another_is_stopped_everything_goes() {
    use Ours::{Agent, Guard, Keeper};
    for (stopped, killed) in [
        (Agent, Keeper),
        (Keeper, Agent),
        (Agent, Guard),
        (Guard, Agent),
        (Guard, Keeper),
        (Keeper, Guard),
    ] {
        kill_together(Some(stopped), &[killed]);
    }
    kill_together(Some(Agent), &[Keeper, Guard]);
    kill_together(Some(Guard), &[Keeper, Agent]);
}

#[test]
fn the_guard_has_a_name_of_its_own() {
    let (harness, _) = stubborn(&[]);
    let guard = Path::new("/proc").join(harness.guard().to_string());
    let read = |file: &str| std::fs::read_to_string(guard.join(file)).unwrap();
    assert_eq!(read("comm").trim_end(), "launch-guard");
    assert_eq!(read("cmdline").trim_end_matches('\0'), "launch-guard");
}

#[test]
fn without_a_handled_sigterm_the_loss_of_the_keeper_is_noticed_all_the_same() {
    let (harness, mut pids) = stubborn(&["signals=10"]);
    pids.push(harness.agent());
    harness.signal(harness.keeper(), Signal::KILL);
    assert_gone(&pids, Duration::from_secs(10));
}

#[test]
fn when_the_agent_is_killed_everything_goes_and_the_keeper_ends_like_it() {
    let (harness, pids) = stubborn(&[]);
    harness.signal(harness.agent(), Signal::KILL);
    let ended = harness.end();
    assert_eq!(ended.signal(), Some(9));
    assert_gone(&pids, Duration::ZERO);
}

#[test]
fn a_signal_that_the_run_does_not_handle_ends_all_of_it() {
    for (handled, sent) in [("signals=15", Signal::ALARM), ("signals=10", Signal::TERM)] {
        let (harness, pids) = stubborn(&[handled]);
        harness.signal(harness.keeper(), sent);
        let ended = harness.end();
        assert_eq!(ended.signal(), Some(sent.as_raw()), "{:#?}", ended.said);
        assert_gone(&pids, Duration::ZERO);
    }
}

#[test]
fn a_hang_up_that_is_ignored_stays_ignored() {
    let script = "trap 'exit 5' TERM; echo ready >&2; sleep 1000 & wait";
    let mut harness = start_after("trap '' HUP", &[], script);
    harness.wait_for("ready");
    harness.signal(harness.keeper(), Signal::HUP);
    harness.signal(harness.keeper(), Signal::TERM);
    let ended = harness.end();
    assert_eq!(ended.all("event received "), ["signal=15"]);
}

#[test]
fn children_that_were_there_before_are_not_touched() {
    // The shell becomes the keeper, and its children with it; one of them leaves its session.
    let first = "sleep 1000 2>&- >&- & echo $! > $DIR/foreign
        setsid sleep 1000 2>&- >&- & echo $! >> $DIR/foreign";
    let ended = start_after(first, &[], "exit 0").end();
    assert_eq!(ended.code(), Some(0));
    let foreign = std::fs::read_to_string(ended.directory.path().join("foreign")).unwrap();
    for foreign in foreign.split_whitespace().map(pid) {
        assert!(state(foreign).is_some(), "{foreign} was hit");
        kill(foreign, Signal::KILL);
    }
}

#[test]
fn the_agent_alone_clears_its_workers_too() {
    let mut harness = start(&["alone", "grace=100"], STUBBORN);
    harness.wait_for("up");
    let pids = harness::pids(harness.directory.path());
    harness.signal(harness.keeper(), Signal::TERM);
    harness.end();
    assert_gone(&pids, Duration::ZERO);
}

#[test]
fn a_console_that_nobody_reads_does_not_keep_workers_alive() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo $$$$ >> $DIR/pids; setsid yes >&2 & echo $! >> $DIR/pids; wait";
    let mut keeper = Command::new(harness::program())
        .args(["--", "/bin/sh", "-c", script])
        .env("DIR", directory.path())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let unread = keeper.stderr.take().unwrap();
    // A pipe is full when it takes no page more.
    while ioctl_fionread(&unread).unwrap() < 60_000 {
        thread::yield_now();
    }
    let pids = harness::pids(directory.path());
    assert_eq!(pids.len(), 2);
    keeper.kill().unwrap();
    keeper.wait().unwrap();
    assert_gone(&pids, Duration::from_secs(10));
}
