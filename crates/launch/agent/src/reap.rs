//! Processes that workers leave behind.
//!
//! The kernel makes such orphans children of the nearest subreaper, which is this process.
//! [`Leftovers`] touches only processes that cannot belong to another program:
//!
//! * Only our own children. No other process can reap them, so the kernel cannot give their process
//!   ids to another process. When we kill a child, its children become ours, and so on until none
//!   is left.
//! * No process that existed before the run, such as a shell that replaced itself with this
//!   program.
//! * No process in our own session. Workers and agents have separate sessions, and a process cannot
//!   return to an earlier session. A process in our session therefore does not come from a worker.

use std::collections::HashSet;
use std::fs;
use std::io;

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper,
    waitpid,
};

use crate::process_stat::ProcessStat;

/// Processes that become our children when their parents exit.
#[derive(Debug, Clone)]
pub(crate) struct Leftovers {
    foreign: HashSet<Pid>,
    session: Option<i32>,
}

impl Leftovers {
    /// Makes this process a child subreaper.
    pub(crate) fn adopt() -> io::Result<Self> {
        set_child_subreaper(Some(getpid()))?;
        Ok(Self {
            foreign: if has_children() {
                children().into_iter().collect()
            } else {
                HashSet::new()
            },
            session: ProcessStat::of("self").map(|us| us.session),
        })
    }

    /// Returns `true` if the kernel provides the list of processes to search.
    pub(crate) fn can_be_found(&self) -> bool {
        self.session.is_some()
    }

    /// Reaps exited leftovers; other code reaps the workers (`ours`).
    /// Returns `false` if a worker must be reaped first. A worker that has exited hides other
    /// exited children from the kernel's quick answer.
    pub(crate) fn collect(&self, ours: &HashSet<Pid>) -> bool {
        match look() {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return true,
            Ok(ended) if ended.pid().is_some_and(|pid| is_one(pid, ours)) => return false,
            // A status without a name, as after a real-time signal, also counts.
            _ => {}
        }
        for child in self.adopted(ours) {
            let _ = waitpid(Some(child), WaitOptions::NOHANG);
        }
        true
    }

    /// Kills all leftovers except `spared`, and reaps those that have exited.
    ///
    /// Returns `true` if none is left. Otherwise the caller should call this again after the next
    /// SIGCHLD. The method kills whole process groups with one signal, so that no member can fork
    /// in between. Such a group is outside our session, so all its members belong to the run.
    pub(crate) fn kill(&self, spared: &HashSet<Pid>) -> bool {
        loop {
            let (mut left, mut collected) = (false, false);
            for child in self.adopted(spared) {
                let group =
                    ProcessStat::of(child.as_raw_nonzero()).and_then(|stat| group_of(stat.group));
                if let Some(group) = group.filter(|group| !spared.contains(group)) {
                    let _ = kill_process_group(group, Signal::KILL);
                }
                let _ = kill_process(child, Signal::KILL);
                match waitpid(Some(child), WaitOptions::NOHANG) {
                    Ok(None) => left = true,
                    // Or another thread reaped the child while we read the list. The kernel then
                    // omits other processes from the list.
                    Ok(Some(_)) | Err(_) => collected = true,
                }
            }
            // The children of reaped processes have just become ours.
            if left || !collected {
                return !left;
            }
        }
    }

    /// Returns `true` if the group of an exited worker still has a member.
    /// Only our children count. While one exists, the kernel cannot give the group's number to
    /// another group.
    pub(crate) fn holds_group(&self, group: Pid, ours: &HashSet<Pid>) -> bool {
        self.adopted(ours)
            .into_iter()
            .filter_map(|child| ProcessStat::of(child.as_raw_nonzero()))
            .any(|child| child.group == group.as_raw_nonzero().get())
    }

    fn adopted(&self, ours: &HashSet<Pid>) -> Vec<Pid> {
        if !has_children() {
            return Vec::new();
        }
        let mut adopted = children();
        adopted.retain(|child| {
            !ours.contains(child) && !self.foreign.contains(child) && !self.in_our_session(*child)
        });
        adopted
    }

    fn in_our_session(&self, child: Pid) -> bool {
        let session = ProcessStat::of(child.as_raw_nonzero()).map(|child| child.session);
        session.is_some() && session == self.session
    }
}

/// Converts the number of a process group; `None` if outside the container.
/// The number is -1 while another thread reaps the process.
fn group_of(number: i32) -> Option<Pid> {
    (number > 0).then(|| Pid::from_raw(number))?
}

/// Sends a signal to all descendants of a process, to stop or continue them.
///
/// To stop processes, the function stops each process before it lists the children. A stopped
/// process cannot start or reap children, so the process ids in the list stay valid.
pub(crate) fn signal_below(parent: Pid, signal: Signal) {
    let (mut seen, mut next) = (HashSet::new(), children_of(parent));
    while let Some(process) = next.pop() {
        if seen.insert(process) && kill_process(process, signal).is_ok() {
            next.extend(children_of(process));
        }
    }
}

/// Continues the fork server and the children in our session (SIGCONT).
///
/// Also continues all processes below the fork server. Workers have other sessions.
pub(crate) fn continue_others(fork_server: Option<Pid>) {
    let session = ProcessStat::of("self").map(|us| us.session);
    let is_ours = |child: Pid| {
        let stat = ProcessStat::of(child.as_raw_nonzero());
        stat.is_some_and(|stat| Some(stat.session) == session)
    };
    let others = children().into_iter().filter(|child| is_ours(*child));
    for other in others {
        let _ = kill_process(other, Signal::CONT);
    }
    if let Some(server) = fork_server {
        let _ = kill_process(server, Signal::CONT);
        signal_below(server, Signal::CONT);
    }
}

pub(crate) fn is_stopped(process: Pid) -> bool {
    ProcessStat::of(process.as_raw_nonzero()).is_some_and(|stat| stat.state == 'T')
}

/// Returns `true` if there is any child, after a single system call.
fn has_children() -> bool {
    !matches!(look(), Err(Errno::ECHILD))
}

fn is_one(pid: nix::unistd::Pid, of: &HashSet<Pid>) -> bool {
    Pid::from_raw(pid.as_raw()).is_some_and(|pid| of.contains(&pid))
}

/// Returns a child that has exited and is not reaped, if any.
fn look() -> nix::Result<WaitStatus> {
    let without_collecting = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    waitid(Id::All, without_collecting)
}

fn children() -> Vec<Pid> {
    children_of(getpid())
}

/// Returns the children of a process, which the kernel lists per thread.
/// A list that is not empty may lack children that start during the reading. An empty list is
/// always right.
fn children_of(parent: Pid) -> Vec<Pid> {
    let mut pids = Vec::new();
    let parent = parent.as_raw_nonzero().get();
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else {
        return pids;
    };
    for thread in threads.flatten() {
        match fs::read_to_string(thread.path().join("children")) {
            Ok(text) => pids.extend(text.split_whitespace().filter_map(parse_pid)),
            // The kernel has no such file, or the thread has just ended.
            Err(_) => return children_from_all_processes(parent),
        }
    }
    pids
}

fn children_from_all_processes(of: i32) -> Vec<Pid> {
    let Ok(processes) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter_map(|process| parse_pid(process.file_name().to_str()?))
        .filter(|pid| ProcessStat::of(pid.as_raw_nonzero()).is_some_and(|other| other.parent == of))
        .collect()
}

fn parse_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_child_is_found_either_way() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let pid = Pid::from_child(&child);
        assert!(has_children());
        assert!(children().contains(&pid));
        let us = getpid().as_raw_nonzero().get();
        assert!(children_from_all_processes(us).contains(&pid));
        let stat = ProcessStat::of(child.id()).unwrap();
        assert_eq!(stat.parent, getpid().as_raw_nonzero().get());
        assert_eq!(stat.session, ProcessStat::of("self").unwrap().session);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_process_that_another_thread_collects_just_now_has_no_group() {
        // As a signal to group -1 it would go to the first process of the container.
        assert_eq!([-1, 0].map(group_of), [None, None]);
        assert_eq!(group_of(7), Pid::from_raw(7));
    }

    /// Variable that is set for the process that the next test starts.
    /// The test needs a separate process because it kills all its children.
    const ALONE: &str = "RDZV_TEST_CLEARS_ALONE";

    #[test]
    #[expect(
        clippy::zombie_processes,
        reason = "the code under test collects the children"
    )]
    fn whatever_another_thread_collects_meanwhile_nothing_is_left() {
        if std::env::var_os(ALONE).is_none() {
            let name = "reap::tests::whatever_another_thread_collects_meanwhile_nothing_is_left";
            let mut alone = Command::new(std::env::current_exe().unwrap());
            let alone = alone.args(["--exact", name]).env(ALONE, "1").output();
            let alone = alone.unwrap();
            let said = String::from_utf8_lossy(&alone.stdout).into_owned();
            assert!(
                alone.status.success() && said.contains("1 passed"),
                "{said}"
            );
            return;
        }
        let leftovers = Leftovers::adopt().unwrap();
        let start = |program: &[&str]| {
            let child = Command::new("setsid").args(program).spawn().unwrap();
            let own = i32::try_from(child.id()).unwrap();
            while ProcessStat::of(own).unwrap().session != own {}
        };
        for _ in 0..60 {
            (0..12).for_each(|_| start(&["true"]));
            start(&["sleep", "20"]);
            let clear = || {
                while !leftovers.kill(&HashSet::new()) {
                    std::thread::yield_now();
                }
                assert!(!has_children());
            };
            std::thread::scope(|scope| {
                scope.spawn(clear);
                scope.spawn(clear);
            });
        }
    }
}
