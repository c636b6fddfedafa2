//! Workers in control groups, really: where the tests may make groups, which takes a unified
//! hierarchy (v2) that is writable, as for root on most machines, and in containers and sessions
//! with delegation. Elsewhere these tests say that they have seen nothing.

#![allow(clippy::unwrap_used, reason = "this is all test code")]

use crate::harness;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::harness::{Harness, start_after};
use rdzv_testing::pids::ends_within;
use rustix::process::Signal;

/// A control group of the test's own, in which it starts a harness.
struct Group(PathBuf);

impl Group {
    fn make(name: &str) -> Option<Self> {
        let made = Self::below_our_own(name);
        if made.is_none() {
            eprintln!("NOT TESTED: no control group can be made here");
        }
        made
    }

    fn below_our_own(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let mount = Path::new(mount.split(' ').nth(4)?);
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let group = mount
            .join(own)
            .join(format!("rdzv-test-{name}-{}", std::process::id()));
        fs::create_dir(&group).ok()?;
        let group = Self(group);
        group.0.join("cgroup.kill").exists().then_some(group)
    }

    fn start(&self, options: &[&str], script: &str) -> Harness {
        let enter = format!("echo $$ > {}/cgroup.procs", self.0.display());
        start_after(&format!("{enter}; mkfifo $DIR/go"), options, script)
    }

    fn groups_inside(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap().flatten();
        entries
            .filter(|entry| entry.file_type().unwrap().is_dir())
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        let _ = fs::remove_dir(&self.0);
    }
}

/// Says where it is, and leaves a child, one in a session of its own and one doubly forked behind.
const FAMILY: &str = "grep ^0:: /proc/self/cgroup
    echo $$ >> $DIR/pids
    sleep 1000 & echo $! >> $DIR/pids
    setsid sleep 1000 & echo $! >> $DIR/pids
    (setsid sh -c 'echo $$ >> $DIR/pids; echo up >&2; exec sleep 1000' &)";

#[test]
fn each_worker_is_in_a_group_of_its_own_which_goes_with_the_run() {
    let Some(group) = Group::make("own") else {
        return;
    };
    let script = format!("{FAMILY}; read up < $DIR/go");
    let mut harness = group.start(&["workers=2"], &script);
    harness.wait_for("up");
    harness.wait_for("up");
    let agent = format!("rdzv-agent-{}", harness.keeper());
    assert_eq!(group.groups_inside(), std::slice::from_ref(&agent));
    harness.signal(harness.keeper(), Signal::TERM);
    let ended = harness.end();
    let mut lines: Vec<&str> = ended.stdout.lines().collect();
    lines.sort_unstable();
    assert!(
        lines[0].ends_with(&format!("{agent}/worker-0")),
        "{lines:?}"
    );
    assert!(
        lines[1].ends_with(&format!("{agent}/worker-1")),
        "{lines:?}"
    );
    ended.assert_nothing_left(8);
    assert!(group.groups_inside().is_empty());
}

#[test]
fn groups_are_used_again_by_the_next_attempt() {
    let Some(group) = Group::make("again") else {
        return;
    };
    let script = format!("{FAMILY}; exit 3");
    let ended = group.start(&["restarts=2"], &script).end();
    assert_eq!(ended.stdout.matches("/worker-0\n").count(), 3);
    // Some have gone before they could say who they are.
    ended.assert_nothing_left(ended.pids().len());
    assert!(group.groups_inside().is_empty());
}

#[test]
fn a_group_that_was_killed_before_starts_workers_too() {
    let Some(group) = Group::make("killed") else {
        return;
    };
    // As a service that is started again in the group in which it was killed.
    fs::write(group.0.join("cgroup.kill"), "1").unwrap();
    let ended = group
        .start(&["restarts=1"], &format!("{FAMILY}; exit 3"))
        .end();
    assert_eq!(ended.stdout.matches("/worker-0\n").count(), 2);
    ended.assert_nothing_left(ended.pids().len());
    assert!(group.groups_inside().is_empty());
}

#[test]
fn whoever_is_killed_the_groups_go() {
    for kill_keeper in [true, false] {
        let Some(group) = Group::make(if kill_keeper { "keeper" } else { "agent" }) else {
            return;
        };
        let script = format!("{FAMILY}; read up < $DIR/go");
        let mut harness = group.start(&[], &script);
        harness.wait_for("up");
        let agent = harness.agent();
        let killed = if kill_keeper { harness.keeper() } else { agent };
        let processes = harness::pids(harness.directory.path());
        harness.signal(killed, Signal::KILL);
        for process in processes.into_iter().chain([agent]) {
            assert!(ends_within(process, Duration::from_secs(10)), "{process:?}");
        }
        harness.end();
        assert!(group.groups_inside().is_empty(), "{kill_keeper}");
    }
}
