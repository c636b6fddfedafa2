//! Tests of workers in real control groups.
//!
//! The tests need a writable unified hierarchy (v2). Root has one on most machines, as do
//! containers and sessions with delegation. On other machines, these tests report that they tested
//! nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::{Running, kill, run_shell_after};

/// Control group in which a test starts runs.
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

    /// Starts a run in the group; its workers run [`FAMILY`], then `then`.
    fn start(&self, flags: &[&str], then: &str) -> Running {
        let enter = format!("echo $$ > {}/cgroup.procs", self.0.display());
        let job = run_shell_after(&enter, flags, &format!("{FAMILY}; {then}"));
        job.pipe("go").start()
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

/// Script that prints its control group and leaves three processes behind.
///
/// The three processes are a child, a child in a separate session, and a doubly forked process.
const FAMILY: &str = "grep ^0:: /proc/self/cgroup
    sleep 1000 & setsid sleep 1000 & (setsid sh -c 'echo up >&2; exec sleep 1000' &)";

#[test]
fn each_worker_is_in_a_group_of_its_own_which_goes_with_the_run() {
    let Some(group) = Group::make("own") else {
        return;
    };
    let running = group.start(&["--nproc-per-node", "2"], "read up < go");
    running.stderr.await_text("up\n", 2);
    let agent = format!("rdzv-agent-{}", running.pid());
    assert_eq!(group.groups_inside(), std::slice::from_ref(&agent));
    running.signal(Signal::TERM);
    let ended = running.wait().expect(1);
    for (line, worker) in ended.sorted().iter().zip(["worker-0", "worker-1"]) {
        assert!(line.ends_with(&format!("{agent}/{worker}")), "{line}");
    }
    assert!(group.groups_inside().is_empty());
}

#[test]
fn groups_are_used_again_by_the_next_attempt() {
    let Some(group) = Group::make("again") else {
        return;
    };
    let ended = group.start(&["--max-restarts", "2"], "exit 3").wait();
    assert_eq!(ended.stdout.matches("/worker-0\n").count(), 3);
    assert!(group.groups_inside().is_empty());
}

#[test]
fn a_group_that_was_killed_before_starts_workers_too() {
    let Some(group) = Group::make("killed") else {
        return;
    };
    // A service can restart in the group in which it was killed.
    fs::write(group.0.join("cgroup.kill"), "1").unwrap();
    let ended = group.start(&["--max-restarts", "1"], "exit 3").wait();
    assert_eq!(ended.stdout.matches("/worker-0\n").count(), 2);
    assert!(group.groups_inside().is_empty());
}

#[test]
fn whoever_is_killed_the_groups_go() {
    for name in ["keeper", "agent"] {
        let Some(group) = Group::make(name) else {
            return;
        };
        let running = group.start(&[], "read up < go");
        running.stderr.await_line("up");
        let killed = if name == "keeper" {
            running.pid()
        } else {
            running.agent_pid()
        };
        kill(killed, Signal::KILL);
        assert!(running.all_gone_within(Duration::from_secs(10)), "{name}");
        running.wait();
        assert!(group.groups_inside().is_empty(), "{name}");
    }
}
